"""Text as one long row of token ids, cut into batches for a language model.

A corpus is read from a directory that holds `train.txt`, `valid.txt` and `test.txt`; the hub is in
`joma.data.hub`. The vocabulary comes from the training split alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from joma._core.errors import JomaError
from joma.data.basic_english import tokenise

UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids. `<unk>` is id 0, and every word that is not listed gets that id."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words or self.words[0] != UNKNOWN or len(self.ids) != len(self.words):
            raise ValueError(f"A vocabulary starts with {UNKNOWN!r} and lists each word once.")

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> Int[Tensor, " context"]:
        """The id of each word."""
        ids = self.ids
        return torch.tensor([ids.get(word, 0) for word in words], dtype=torch.int64)


def vocabulary(words: Iterable[str], size: int | None = None) -> Vocabulary:
    """The words by falling frequency, ties in alphabetical order, after `<unk>`.

    Args:
        words: A training text. An `<unk>` in it is not counted twice.
        size: Cut to so many entries, `<unk>` among them. Keeps all if left out.

    Example:
        >>> vocabulary("b a c b <unk>".split(), size=3).words
        ('<unk>', 'b', 'a')
    """
    if size is not None and size < 1:
        raise ValueError(f"A vocabulary has room for {UNKNOWN!r} at least; got size = {size}.")
    counts = Counter(words)
    counts.pop(UNKNOWN, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return Vocabulary((UNKNOWN, *ranked)[:size])


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three splits in the ids of one vocabulary."""

    vocabulary: Vocabulary
    train: Int[Tensor, " train"]
    valid: Int[Tensor, " valid"]
    test: Int[Tensor, " test"]


def corpus(
    train: str,
    valid: str,
    test: str,
    *,
    size: int | None = None,
    tokeniser: Callable[[str], list[str]] = tokenise,
) -> Corpus:
    """A corpus from three texts; `size` cuts the vocabulary."""
    words = tokeniser(train)
    known = vocabulary(words, size)
    rest = (known.encode(tokeniser(text)) for text in (valid, test))
    return Corpus(known, known.encode(words), *rest)


def read(directory: Path | str, *, size: int | None = None) -> Corpus:
    """The corpus of a directory with `train.txt`, `valid.txt` and `test.txt`, in UTF-8.

    WikiText-2 has 28,782 words and 2,049,990 training tokens this way. The order of its articles
    does not change these counts, but it does change a training curve.
    """
    paths = [Path(directory) / f"{split}.txt" for split in ("train", "valid", "test")]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JomaError(
            f"A text corpus is train.txt, valid.txt and test.txt in one directory; {directory} "
            f"lacks {', '.join(missing)}."
        )
    train, valid, test = (path.read_text(encoding="utf-8") for path in paths)
    return corpus(train, valid, test, size=size)


def batchify(tokens: Int[Tensor, " context"], batch: int) -> Int[Tensor, "batch steps"]:
    """The text cut into `batch` rows of equal length, each continuous; the remainder is dropped."""
    steps = len(tokens) // batch if batch > 0 else 0
    if steps < 2:
        raise ValueError(
            f"Each of {batch} rows needs an input and a target; {len(tokens)} tokens are too few."
        )
    return tokens[: batch * steps].reshape(batch, steps)


class Window(NamedTuple):
    """What a language model sees, and what it should say next."""

    inputs: Int[Tensor, "batch query"]
    targets: Int[Tensor, "batch query"]


def window_count(rows: Int[Tensor, "batch steps"], bptt: int = 35) -> int:
    """Minibatches per epoch, the last of which may be short."""
    return -(-(rows.shape[1] - 1) // bptt)


def window(rows: Int[Tensor, "batch steps"], index: int, bptt: int = 35) -> Window:
    """Minibatch `index` of an epoch, by number: a resumed run asks for the next one.

    Example:
        >>> window(batchify(torch.arange(10), 2), 0, bptt=3).targets.tolist()
        [[1, 2, 3], [6, 7, 8]]
    """
    count = window_count(rows, bptt)
    if not 0 <= index < count:
        raise IndexError(f"Windows are numbered 0 to {count - 1}; got {index}.")
    start = index * bptt
    stop = min(start + bptt, rows.shape[1] - 1)
    return Window(rows[:, start:stop], rows[:, start + 1 : stop + 1])


def windows(rows: Int[Tensor, "batch steps"], bptt: int = 35) -> Iterator[Window]:
    """The minibatches of an epoch, in order. Every token but the first is a target once."""
    return (window(rows, index, bptt) for index in range(window_count(rows, bptt)))

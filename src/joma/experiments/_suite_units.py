"""What the MLP units of a checkpoint do on sentences; needs joma[hf].

Token ids of any tokeniser become words of a small vocabulary: the most frequent tokens of a
background text, and 0 for all the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma._core.errors import JomaError
from joma._core.typing import Array
from joma.architectures.base import find, locate
from joma.probes import hidden, live
from joma.probes.base import HiddenCall, Place
from joma.probes.slots import AbstractReceiver
from joma.probes.weights import Weights, place_of
from joma.sources.base import AbstractSource
from joma.sweep.text import loaded, tokeniser


class Read(NamedTuple):
    """Sentences and a background text, in tokens."""

    sentences: tuple[Int[Tensor, " length"], ...]
    word: Int[Array, " samples"]
    """Of every position that has a next one, sentence by sentence."""
    following: Int[Array, " samples"]
    background: Int[Array, " context"]


def read(
    source: AbstractSource,
    revision: str,
    sentences: Sequence[str],
    background: str,
    *,
    words: int,
    longest: int,
) -> Read:
    """Sentences as tokens of the suite's tokeniser, each cut to `longest`, and as words."""
    words_of = tokeniser(source, revision)

    def ids(text: str) -> list[int]:
        found: list[int] = words_of(text, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    rows = [torch.tensor(row) for s in sentences if len(row := ids(s)[:longest]) > 1]
    if not rows:
        raise JomaError(f"None of the {len(sentences)} sentences has two tokens: nothing to read.")
    place = _places(ids(background), words_of.unk_token_id, words)
    return Read(
        tuple(rows),
        np.concatenate([_words(row[:-1].tolist(), place) for row in rows]),
        np.concatenate([_words(row[1:].tolist(), place) for row in rows]),
        _words(ids(background), place),
    )


def layers(
    source: AbstractSource, revision: str, sentences: Sequence[Tensor]
) -> Iterator[tuple[int, Float[Array, "samples embed"], Float[Array, "samples hidden"]]]:
    """Inputs and pre-activations of each lower MLP matrix, at every position but the last."""
    model = loaded(source, revision)
    shapes = live.shapes(live.tensors(model))
    anatomy = locate(find(shapes, [model.config.model_type])[1], shapes)
    # Of an MLP with a gate, the last lower matrix is the one that the gate multiplies.
    kept = _Kept(frozenset(place_of(m.lower[-1]) for m in anatomy.mlps if m.upper.expert is None))
    if not kept.wanted:
        raise JomaError(f"{revision!r} has experts only, and no unit of theirs sees every token.")
    with torch.no_grad(), hidden.watching(model, anatomy, Weights(model, anatomy), kept):
        for row in sentences:
            model(input_ids=row[None])
    for layer, calls in sorted(kept.calls.items()):
        inputs, units = (np.concatenate(parts) for parts in zip(*calls, strict=True))
        yield layer, inputs, units


@dataclass(frozen=True)
class _Kept(AbstractReceiver):
    """What came into some matrices and what came out, sentence by sentence."""

    wanted: frozenset[Place]
    calls: dict[int, list[tuple[Array, Array]]] = field(default_factory=dict)

    def receive(self, place: Place, seen: HiddenCall) -> None:
        if place in self.wanted:
            parts = (seen.inputs[0, :-1].numpy(), seen.preactivation[0, :-1].numpy())
            self.calls.setdefault(place.layer or 0, []).append(parts)

    def note(self, place: Place, problem: BaseException) -> None:
        raise JomaError(f"Layer {place.layer} could not be watched: {problem}") from problem

    def compare(self, place: Place, value: Tensor, output: Tensor) -> None:
        """Attention is not watched."""


def _places(ids: Sequence[int], unknown: Any, words: int) -> dict[int, int]:
    """The most frequent tokens, numbered from 1 by falling frequency."""
    found, counts = np.unique(np.array(ids), return_counts=True)
    ranked = found[np.lexsort((found, -counts))]
    return {int(t): i + 1 for i, t in enumerate(ranked[ranked != unknown][: words - 1])}


def _words(ids: Sequence[int], place: dict[int, int]) -> Int[Array, " context"]:
    return np.array([place.get(i, 0) for i in ids], dtype=np.int64)

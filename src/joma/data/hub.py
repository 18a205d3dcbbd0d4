"""Edge file for joma[hf]: WikiText from the hub, or any `datasets` data with a text column."""

from collections.abc import Mapping

from joma._core.errors import UnknownNameError
from joma._core.extras import extra
from joma._core.registry import closest
from joma.data.text import Corpus, corpus

with extra("hf", packages=("datasets",), purpose="Reading a corpus by name"):
    # An environment may have no types for it, or not have it at all.
    from datasets import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        Dataset,
        load_dataset,
    )

# The word-level versions, whose rare words are <unk> already, as the paper's runs use.
CONFIGS = {"wikitext-2": "wikitext-2-v1", "wikitext-103": "wikitext-103-v1"}


def load(name: str, *, size: int | None = None) -> Corpus:
    """WikiText-2 or WikiText-103 by name, downloaded once and cached by `datasets`.

    The articles are in the official order.

    Args:
        name: `"wikitext-2"` or `"wikitext-103"`.
        size: Cuts the vocabulary.
    """
    if name not in CONFIGS:
        raise UnknownNameError(f"No corpus named {name!r}.{closest(name, sorted(CONFIGS))}")
    return from_datasets(load_dataset("Salesforce/wikitext", CONFIGS[name]), size=size)


def from_datasets(
    splits: Mapping[str, Dataset], *, column: str = "text", size: int | None = None
) -> Corpus:
    """A corpus from the splits `train`, `validation` and `test`, one line or document per row."""
    names = ("train", "validation", "test")
    missing = [name for name in names if name not in splits]
    if missing:
        raise ValueError(
            f"A corpus needs the splits {', '.join(names)}; {', '.join(missing)} is missing "
            f"among {', '.join(splits)}."
        )
    train, valid, test = ("\n".join(splits[name][column]) for name in names)
    return corpus(train, valid, test, size=size)

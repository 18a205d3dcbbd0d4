"""How related the contexts are that make a unit fire: the statistic of `superposition`.

Arrays only, so that it serves any model and any text. A unit's contexts are the positions where it
is highest; the word at a position names the context, the word after it is what should be said
there, and a vector per word says which words are alike.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import binom

from joma._core.typing import Array

LEAST = 3  # contexts of a unit that share a word, for the word to be a pattern
CHANCE = 1e-3  # that as many would share it, if they were drawn at random


def counted(top: int, things: str) -> str:
    """What `Relatedness.superposed` counts, for the rule of a claim."""
    return (
        f"share of units whose {top} highest {things} have two patterns (words of >= {LEAST}"
        f" {things}, by chance with p < {CHANCE}) less alike than the median pair of words"
    )


class Relatedness(NamedTuple):
    """Of the contexts of each unit."""

    same_word: Float[Array, " hidden"]
    """Share of pairs of contexts with the same word."""
    same_next: Float[Array, " hidden"]
    """Share of pairs with the same next word."""
    likeness: Float[Array, " hidden"]
    """Mean cosine of the words of a pair."""
    patterns: Int[Array, " hidden"]
    """Words that the contexts share more often than chance explains."""
    superposed: Bool[Array, " hidden"]
    """Whether two of these words are less alike than words typically are."""


def top_contexts(
    activation: Float[Array, "samples hidden"], count: int
) -> Int[Array, "hidden count"]:
    """The samples where each unit is highest, in no order."""
    if count >= len(activation):
        raise ValueError(f"Needs more than {count} samples; got {len(activation)}.")
    return np.asarray(np.argpartition(-activation, count, axis=0)[:count].T)


def random_contexts(
    samples: int, hidden: int, count: int, rng: np.random.Generator
) -> Int[Array, "hidden count"]:
    """The control: samples drawn for each unit without looking, so words are as frequent."""
    return np.stack([rng.choice(samples, count, replace=False) for _ in range(hidden)])


def relatedness(
    contexts: Int[Array, "hidden count"],
    word: Int[Array, " samples"],
    following: Int[Array, " samples"],
    vectors: Float[Array, "words features"],
) -> Relatedness:
    """How related the contexts of each unit are.

    Args:
        contexts: Samples that belong to each unit, as `top_contexts` gives them.
        word: The word of each sample.
        following: The word after it.
        vectors: One per word; only their directions count.
    """
    unit = _normalised(vectors)
    own = word[contexts]  # [hidden, count]
    typical = typical_likeness(unit[np.unique(word)])
    share = np.bincount(word, minlength=len(vectors)) / len(word)
    found = [patterns(row, share) for row in own]
    return Relatedness(
        same_word=_same(own),
        same_next=_same(following[contexts]),
        likeness=_mean_cosine(unit, own),
        patterns=np.array([len(words) for words in found]),
        superposed=np.array([_least_alike(unit[words]) < typical for words in found]),
    )


def patterns(own: Int[Array, " count"], share: Float[Array, " words"]) -> Int[Array, " patterns"]:
    """Words held by at least `LEAST` of the contexts, and by more than their share explains.

    Example:
        >>> patterns(np.array([7, 7, 7, 2, 2, 2, 5]), np.full(10, 0.02)).tolist()
        [2, 7]
    """
    words, counts = np.unique(own, return_counts=True)
    chance = binom.sf(counts - 1, len(own), share[words])
    return np.asarray(words[(counts >= LEAST) & (chance < CHANCE)])


def typical_likeness(vectors: Float[Array, "words features"]) -> float:
    """Median cosine over all pairs of different words, rare ones counting as much as frequent."""
    unit = _normalised(vectors)
    return float(np.median((unit @ unit.T)[np.triu_indices(len(unit), 1)]))


def neighbourhoods(text: Int[Array, " samples"], words: int) -> Float[Array, "words features"]:
    """A vector per word: square roots of the shares of words before and after it in a text.

    The cosine of two is 1 for words with the same neighbours and 0 for words with none in common.
    It is lower for rare words, whose neighbours are few.
    """
    after = np.zeros((words, words))
    np.add.at(after, (text[:-1], text[1:]), 1.0)
    sides = (after, after.T)
    shares = [side / np.maximum(side.sum(1, keepdims=True), 1.0) for side in sides]
    return np.asarray(np.sqrt(np.hstack(shares)))


def _same(labels: Int[Array, "hidden count"]) -> Float[Array, " hidden"]:
    equal = labels[:, :, None] == labels[:, None, :]
    count = labels.shape[1]
    return np.asarray((equal.sum((1, 2)) - count) / (count * (count - 1)))


def _mean_cosine(
    unit: Float[Array, "words features"], own: Int[Array, "hidden count"]
) -> Float[Array, " hidden"]:
    count = own.shape[1]
    total = np.stack([unit[row].sum(0) for row in own])
    squares = (unit[own] ** 2).sum((1, 2))  # 1 per word, but 0 for one without a vector
    return np.asarray(((total**2).sum(1) - squares) / (count * (count - 1)))


def _least_alike(unit: Float[Array, "patterns features"]) -> float:
    """Smallest cosine of two patterns; no less than 1 if there are not two."""
    return float((unit @ unit.T + 2 * np.eye(len(unit))).min(initial=1.0))


def _normalised(vectors: Float[Array, "words features"]) -> Float[Array, "words features"]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1.0))

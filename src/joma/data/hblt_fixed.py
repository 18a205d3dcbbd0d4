"""The deterministic hierarchy behind Table 1: a class is one fixed sequence of tokens.

The paper calls this data "sampled by HBLT". What its code does is expand a class from the top down,
through random combinations of children that are drawn once: no flips, and no tree either, as
latents share children. So there are only as many different inputs as classes, and on so few points
the best of 400 noise units correlates by .4 to .6 with any latent. For samples with noise use
`joma.data.hblt`.

Written from the settings, without the code. Not known to us, and chosen here: the identity of the
pad token (ours follows the M tokens), the order of tokens in a sequence (ours is ascending; the
authors' is that of a Python set) and the order of random draws, so a seed of theirs names other
sequences than ours. That $N_0$ counts the latents next to the tokens is inferred.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from joma.data._seed import Seed, stream


@dataclass(frozen=True)
class FixedHierarchy:
    """One cell of Table 1. Classes choose latents of the top level, and so on down to tokens."""

    classes: int = 20
    children: int = 2
    """$N_{ch}$ of every class and every latent."""
    latents: tuple[int, ...] = (10, 20)
    """$(N_0, N_1)$: latents per level, the one next to the tokens first."""
    tokens: int = 100
    length: int = 30

    def __post_init__(self) -> None:
        if self.children < 1:
            raise ValueError(f"A latent has at least one child; got children = {self.children}.")
        for parents, below in self.steps:
            if parents > math.comb(below, self.children):
                raise ValueError(
                    f"{parents} parents cannot have different sets of {self.children} children "
                    f"out of {below}: there are {math.comb(below, self.children)}."
                )
        most = min(self.children ** len(self.steps), self.tokens)
        if most > self.length:
            raise ValueError(
                f"A class may expand to {most} tokens, more than length = {self.length}."
            )

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(parents, children to choose from) from the classes down to the tokens."""
        sizes = [self.classes, *reversed(self.latents), self.tokens]
        return list(pairwise(sizes))

    @property
    def pad(self) -> int:
        """Fills a sequence from the left: the id after the last token."""
        return self.tokens

    @property
    def vocabulary(self) -> int:
        """Ids in use: the tokens and the pad."""
        return self.tokens + 1


class FixedSequences(NamedTuple):
    """All there is to see: one row per class."""

    sequences: Int[Tensor, "samples context"]
    latents: tuple[Bool[Tensor, "samples nodes_of_level"], ...]
    """`latents[s]` says which latents of level $s$ are on; level 0 is next to the tokens. Some may
    be on in no class or in all, where a correlation is undefined."""
    present: Bool[Tensor, "samples tokens"]
    """Which tokens the sequence holds. Two classes may hold the same."""


def sequences(config: FixedHierarchy, seed: Seed) -> FixedSequences:
    """One draw of the hierarchy and the sequence of each of its classes.

    Example:
        >>> drawn = sequences(FixedHierarchy(), seed=0)
        >>> drawn.sequences.shape, [tuple(y.shape) for y in drawn.latents]
        (torch.Size([20, 30]), [(20, 10), (20, 20)])
    """
    generator = stream(seed)
    on = torch.eye(config.classes, dtype=torch.bool)
    found = []
    for parents, below in config.steps:
        chosen = _combinations(parents, below, config.children, generator)
        on = on.float() @ chosen.float() > 0
        found.append(on)
    *latents, present = found
    return FixedSequences(_padded(present, config), tuple(reversed(latents)), present)


def _combinations(
    parents: int, below: int, children: int, generator: torch.Generator
) -> Bool[Tensor, "parents below"]:
    """A different set of children for each parent, uniform over all such choices."""
    sets: dict[tuple[int, ...], None] = {}  # keeps the order of arrival
    while len(sets) < parents:
        drawn = torch.randperm(below, generator=generator)[:children]
        sets.setdefault(tuple(drawn.sort().values.tolist()))
    chosen = torch.zeros(parents, below, dtype=torch.bool)
    return chosen.scatter_(1, torch.tensor(list(sets)), True)


def _padded(
    present: Bool[Tensor, "samples tokens"], config: FixedHierarchy
) -> Int[Tensor, "samples context"]:
    ids = torch.where(present, torch.arange(config.tokens), -1).sort(dim=1).values
    missing = torch.full((len(ids), config.length), -1)
    last = torch.cat([missing, ids], dim=1)[:, -config.length :]
    return torch.where(last < 0, config.pad, last)

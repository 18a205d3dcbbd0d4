r"""HBLT($\rho$), the hierarchical binary latent tree with its noise: the data of Theorem 5.

A categorical root $y_0$ stands at level $L$, binary latents below it, tokens (leaves) at level 0.
Each latent copies its parent and flips with probability $(1-\rho)/2$. Samples of one class differ.
Table 1 of the paper says that it samples this tree; its data is that of `joma.data.hblt_fixed`,
which has no noise.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.data._seed import Seed, stream


@dataclass(frozen=True)
class NoisyTree:
    r"""A complete tree: its edges, and what the root's class says about the latents below it."""

    edges: tuple[float | tuple[float, ...], ...]
    r"""Polarity $\rho$ of the edges into each level from $L-2$ down to 0: one number for a whole
    level, or one per node of that level, from left to right."""
    zero_given_class: tuple[tuple[float, ...], ...] = ((0.5,),)
    r"""$P[y_\beta = 0 \mid y_0 = k]$: a row per class $k$, a column per child $\beta$ of the
    root. Theorem 5 speaks of two leaves below the same child."""
    prior: tuple[float, ...] | None = None
    """$P[y_0 = k]$. Uniform if left out."""
    branching: int = 2

    def __post_init__(self) -> None:
        _check_root(self.zero_given_class, self.prior)
        if self.branching < 1:
            raise ValueError(f"A latent has at least one child; got branching = {self.branching}.")
        for level, rho in zip(reversed(range(len(self.edges))), self.edges, strict=True):
            values = rho if isinstance(rho, tuple) else (rho,)
            if isinstance(rho, tuple) and len(rho) != self.nodes(level):
                raise ValueError(
                    f"Level {level} has {self.nodes(level)} nodes; got {len(rho)} edges for it."
                )
            if any(not -1 <= value <= 1 for value in values):
                raise ValueError(f"Polarities lie in [-1, 1]; level {level} has {values}.")

    @classmethod
    def even(
        cls, rho: float, *, levels: int, rho_0: float = 0.0, branching: int = 2
    ) -> "NoisyTree":
        r"""Theorem 5's tree: every edge $\rho$, one top latent with polarity $\rho_0$.

        $\rho_0 = 2P[y_1 = 0] - 1$; the theorem prints the probability itself (E10).
        """
        root = (((1 + rho_0) / 2,),)
        return cls((rho,) * (levels - 1), zero_given_class=root, branching=branching)

    @property
    def levels(self) -> int:
        """$L$, the level of the root."""
        return len(self.edges) + 1

    def nodes(self, level: int) -> int:
        """How many nodes a level has; level 0 holds the tokens."""
        tops = len(self.zero_given_class[0])
        return tops * int(self.branching ** (self.levels - 1 - level))


class TreeSample(NamedTuple):
    """Draws of a whole tree."""

    classes: Int[Tensor, " samples"]
    """$y_0$."""
    latents: tuple[Bool[Tensor, "samples nodes_of_level"], ...]
    """`latents[s]` are the latents of level $s$; node $j$ has parent `j // branching` above."""

    @property
    def leaves(self) -> Bool[Tensor, "samples tokens"]:
        """Which tokens are present: level 0."""
        return self.latents[0]


def sample(tree: NoisyTree, samples: int, seed: Seed) -> TreeSample:
    """Independent draws from the root down, with the latents of every level.

    Example:
        >>> drawn = sample(NoisyTree.even(0.9, levels=4), 5, seed=0)
        >>> [tuple(y.shape) for y in drawn.latents]
        [(5, 8), (5, 4), (5, 2), (5, 1)]
    """
    generator = stream(seed)
    zero = torch.tensor(tree.zero_given_class, dtype=torch.float64)
    prior = torch.ones(len(zero), dtype=torch.float64)
    if tree.prior is not None:
        prior = torch.tensor(tree.prior, dtype=torch.float64)
    edges = (prior / prior.sum()).cumsum(0)[:-1]
    classes = torch.searchsorted(edges, _uniform((samples,), generator), right=True)
    latent = _uniform((samples, zero.shape[1]), generator) >= zero[classes]
    found = [latent]
    for rho in tree.edges:
        latent = latent.repeat_interleave(tree.branching, dim=1)
        flip = (1 - torch.tensor(rho, dtype=torch.float64)) / 2
        latent = latent ^ (_uniform(tuple(latent.shape), generator) < flip)
        found.append(latent)
    return TreeSample(classes, tuple(reversed(found)))


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _check_root(rows: tuple[tuple[float, ...], ...], prior: tuple[float, ...] | None) -> None:
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
        raise ValueError(
            "zero_given_class needs a row per class and the same number of latents in each; "
            f"got rows of {[len(row) for row in rows]}."
        )
    if any(not 0 <= p <= 1 for row in rows for p in row):
        raise ValueError(f"zero_given_class holds probabilities; got {rows}.")
    if prior is None:
        return
    if len(prior) != len(rows) or min(prior) < 0 or abs(sum(prior) - 1) > 1e-9:
        raise ValueError(f"prior must be {len(rows)} probabilities that sum to 1; got {prior}.")

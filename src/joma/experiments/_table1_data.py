"""The two kinds of data that Table 1 is measured on: a sequence per class, and samples of a tree.

Of the first kind there are only as many different inputs as classes. Of the second almost every
sample is different, so a unit can be chosen on some and scored on others.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from joma.data import hblt
from joma.data.hblt_fixed import FixedHierarchy, FixedSequences, sequences
from joma.experiments._table1_model import Batch

BATCH = 128  # the authors'


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A cell of Table 1: its settings and what the paper prints, mean over five seeds."""

    classes: int
    children: int
    latents: tuple[int, int]
    s0: float
    s1: float

    @property
    def arm(self) -> str:
        """Name of its runs."""
        return f"C{self.classes}_Nch{self.children}_{self.latents[0]}_{self.latents[1]}"

    @property
    def hierarchy(self) -> FixedHierarchy:
        """Its generator, with 100 tokens and length 30."""
        return FixedHierarchy(self.classes, self.children, self.latents)


def _cell(classes: int, children: int, latents: tuple[int, int], s0: float, s1: float) -> Printed:
    return Printed(classes=classes, children=children, latents=latents, s0=s0, s1=s1)


TABLE = (
    _cell(20, 2, (10, 20), 0.99, 0.81),
    _cell(20, 2, (20, 30), 0.97, 0.80),
    _cell(20, 3, (10, 20), 1.00, 0.69),
    _cell(20, 3, (20, 30), 0.96, 0.68),
    _cell(30, 2, (10, 20), 0.99, 0.73),
    _cell(30, 2, (20, 30), 0.94, 0.74),
    _cell(30, 3, (10, 20), 0.99, 0.72),
    _cell(30, 3, (20, 30), 0.95, 0.66),
    _cell(50, 2, (10, 20), 0.99, 0.58),
    _cell(50, 2, (20, 30), 0.95, 0.55),
    _cell(50, 3, (10, 20), 0.99, 0.64),
    _cell(50, 3, (20, 30), 0.95, 0.61),
)
"""Table 1 as printed."""


@dataclass(frozen=True)
class FixedTask:
    """One draw of a cell; a batch is its classes, each with the share it was drawn with."""

    config: FixedHierarchy
    drawn: FixedSequences
    generator: torch.Generator

    @classmethod
    def of(cls, config: FixedHierarchy, seed: int) -> "FixedTask":
        """Hierarchy and batches from one stream."""
        generator = torch.Generator().manual_seed(seed)
        return cls(config, sequences(config, generator), generator)

    def batch(self) -> Batch:
        """128 rows drawn with replacement, put together by class."""
        classes = self.config.classes
        rows = torch.randint(classes, (BATCH,), generator=self.generator)
        shares = rows.bincount(minlength=classes) / BATCH
        return Batch(self.drawn.sequences, torch.arange(classes), shares)


@dataclass(frozen=True, kw_only=True)
class NoisyCell:
    """HBLT(rho) with the shape of a cell: each class switches on `children` of the top latents."""

    classes: int
    rho: float
    tops: int = 20  # N_1 of half the cells
    children: int = 2  # of classes and latents, as half the cells
    sure: float = 0.95  # ours: how surely a class decides each top latent

    @property
    def arm(self) -> str:
        """Name of its runs."""
        return f"sampled_C{self.classes}_rho{self.rho:g}"

    @property
    def tokens(self) -> int:
        """Leaves of the tree, each in the sequence or not."""
        return self.tops * self.children**2


class Sampled(NamedTuple):
    """Samples of a tree, as the model sees them and as we know them."""

    sequences: Int[Tensor, "samples context"]
    """The tokens that are on, ascending, padded on the left."""
    labels: Int[Tensor, " samples"]
    latents: tuple[Bool[Tensor, "samples nodes_of_level"], ...]
    """As Table 1 counts: level 0 is next to the tokens."""


@dataclass(frozen=True)
class NoisyTask:
    """One tree of a cell, and a stream of samples of it."""

    config: NoisyCell
    tree: hblt.NoisyTree
    generator: torch.Generator

    @classmethod
    def of(cls, config: NoisyCell, seed: int) -> "NoisyTask":
        """Which top latents belong to a class is drawn once, different for each class."""
        generator = torch.Generator().manual_seed(seed)
        rows = codes(config.classes, config.tops, config.children, config.sure, generator)
        edges = (config.rho, config.rho)
        tree = hblt.NoisyTree(edges, zero_given_class=rows, branching=config.children)
        return cls(config, tree, generator)

    def sample(self, samples: int) -> Sampled:
        """Fresh samples."""
        drawn = hblt.sample(self.tree, samples, self.generator)
        ids = torch.arange(self.config.tokens).where(drawn.leaves, -1).sort(dim=1).values
        padded = torch.where(ids < 0, self.config.tokens, ids)
        return Sampled(padded, drawn.classes, drawn.latents[1:])

    def batch(self) -> Batch:
        """128 fresh samples."""
        drawn = self.sample(BATCH)
        return Batch(drawn.sequences, drawn.labels, torch.full((BATCH,), 1 / BATCH))


def codes(
    classes: int, tops: int, children: int, sure: float, generator: torch.Generator
) -> tuple[tuple[float, ...], ...]:
    """P[top latent = 0 | class]: each class switches on `children` of them, a different set."""
    sets = torch.combinations(torch.arange(tops), children)
    assert len(sets) == math.comb(tops, children) >= classes
    chosen = sets[torch.randperm(len(sets), generator=generator)[:classes]]
    zero = torch.full((classes, tops), sure, dtype=torch.float64)
    zero.scatter_(1, chosen, 1 - sure)
    return tuple(tuple(row) for row in zero.tolist())

r"""Isotropic clusters, Gaussian and heavy-tailed: the data of Lemmas 1 to 5 and Theorem 3.

A sample is $x = \bar x_j + x'$ with $x'$ isotropic, made as a random length times a Gaussian
vector. Then every unit projection of $x'$ has the same law in any dimension, that of
`joma.theory.projections`. The tail matters: a ReLU node has critical points only between clusters
with heavy tails.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.data._seed import Seed, stream


def _check_probabilities(values: tuple[float, ...]) -> None:
    if min(values) < 0 or abs(sum(values) - 1) > 1e-9:
        raise ValueError(f"Probabilities are not negative and sum to 1; got {values}.")


class AbstractScatter(ABC):
    """How far a sample lies from its centre: the law of its scale."""

    @abstractmethod
    def scales(self, samples: int, generator: torch.Generator) -> Float[Tensor, " samples"]:
        """The standard deviation that each sample's Gaussian vector is multiplied by."""


@dataclass(frozen=True)
class Normals(AbstractScatter):
    """Centred normals of several widths; a single one is the Gaussian cluster."""

    weights: tuple[float, ...] = (1.0,)
    sigmas: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.sigmas) or min(*self.weights, *self.sigmas, 1.0) <= 0:
            raise ValueError(
                "A scale mixture needs one positive weight per positive sigma; got weights "
                f"{self.weights} and sigmas {self.sigmas}."
            )
        _check_probabilities(self.weights)

    def scales(self, samples: int, generator: torch.Generator) -> Float[Tensor, " samples"]:
        sigmas = torch.tensor(self.sigmas, dtype=torch.float64)
        return sigmas[_choice(self.weights, samples, generator)]


@dataclass(frozen=True)
class StudentT(AbstractScatter):
    """Student's t with `df` degrees of freedom, one scale for all components of a sample."""

    df: int
    """A whole number: the squared scale is `df` over a sum of `df` squared normals."""

    def __post_init__(self) -> None:
        if self.df < 2:
            raise ValueError(f"Lemma 3 needs a finite mean, so df is at least 2; got {self.df}.")

    def scales(self, samples: int, generator: torch.Generator) -> Float[Tensor, " samples"]:
        squares = _normal(samples, self.df, generator).square()
        return (self.df / squares.sum(1)).sqrt()


GAUSSIAN = Normals()
HEAVY = Normals(weights=(0.9, 0.1), sigmas=(0.3, 3.0))
"""One sample in ten is ten times as far: enough for a critical point (Eqn. 58)."""


@dataclass(frozen=True)
class Clusters:
    r"""Clusters, each with a centre, a probability and a constant signal $g$ for the node."""

    centres: tuple[tuple[float, ...], ...]
    probabilities: tuple[float, ...]
    signals: tuple[float, ...]
    r"""$\mathbb E[g \mid j]$, commonly +1 or -1; times the probability it is $a_j$ of Lemma 2."""
    scatter: AbstractScatter = GAUSSIAN

    def __post_init__(self) -> None:
        counts = {len(self.centres), len(self.probabilities), len(self.signals)}
        if len(counts) > 1 or len({len(centre) for centre in self.centres}) != 1:
            raise ValueError(
                "Clusters need a centre, a probability and a signal each, and centres of one "
                f"length; got {len(self.centres)} centres, {len(self.probabilities)} "
                f"probabilities, {len(self.signals)} signals."
            )
        _check_probabilities(self.probabilities)


class ClusterSample(NamedTuple):
    """Draws from the clusters."""

    x: Float[Tensor, "samples tokens"]
    cluster: Int[Tensor, " samples"]
    signal: Float[Tensor, " samples"]


def pair(
    seed: Seed,
    *,
    tokens: int = 10,
    separation: float = 1.0,
    positive: float = 0.2,
    scatter: AbstractScatter = GAUSSIAN,
) -> Clusters:
    r"""The two clusters of Section 4's node: $\bar x_+$ with signal +1, and 0 with signal -1.

    The direction of $\bar x_+$ has components uniform on [1, 4) before it is given its length.

    Args:
        seed: Draws the direction.
        tokens: $M_C$.
        separation: $\|\bar x_+\|$.
        positive: Probability of the positive cluster. At 0.2 a trained ReLU node drops and
            bounces; at 0.5 it does not.
        scatter: Law of both clusters around their centres.
    """
    draw = torch.rand(tokens, generator=stream(seed), dtype=torch.float64)
    direction = 1 + 3 * draw
    centre = separation * direction / direction.norm()
    return Clusters(
        centres=(tuple(centre.tolist()), (0.0,) * tokens),
        probabilities=(positive, 1 - positive),
        signals=(1.0, -1.0),
        scatter=scatter,
    )


def sample(clusters: Clusters, samples: int, seed: Seed) -> ClusterSample:
    """Independent draws, in float64.

    Example:
        >>> drawn = sample(pair(seed=0), 512, seed=1)
        >>> drawn.x.shape, sorted(set(drawn.signal.tolist()))
        (torch.Size([512, 10]), [-1.0, 1.0])
    """
    generator = stream(seed)
    centres = torch.tensor(clusters.centres, dtype=torch.float64)
    signals = torch.tensor(clusters.signals, dtype=torch.float64)
    cluster = _choice(clusters.probabilities, samples, generator)
    scales = clusters.scatter.scales(samples, generator)
    away = scales[:, None] * _normal(samples, centres.shape[1], generator)
    return ClusterSample(centres[cluster] + away, cluster, signals[cluster])


def _normal(rows: int, cols: int, generator: torch.Generator) -> Float[Tensor, "rows cols"]:
    return torch.randn(rows, cols, generator=generator, dtype=torch.float64)


def _choice(
    probabilities: tuple[float, ...], samples: int, generator: torch.Generator
) -> Int[Tensor, " samples"]:
    edges = torch.tensor(probabilities, dtype=torch.float64).cumsum(0)[:-1]
    draw = torch.rand(samples, generator=generator, dtype=torch.float64)
    return torch.searchsorted(edges, draw, right=True)

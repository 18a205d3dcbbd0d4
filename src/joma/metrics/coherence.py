r"""Coherence: mean $|\cos|$ between the vectors of a set, beside what random vectors give.

Theorem 1 needs orthonormal embeddings, and stacking the layer needs MLP output columns that behave
like embeddings of the next one (Section 7). Random directions in $d$ dimensions are not orthogonal:
they have mean $|\cos| \approx \sqrt{2/(\pi d)}$, and that is the floor to compare with.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.records.schema import OK, Bound, Reading

TILE: Final = 1024
"""Vectors per tile: what is held at once is one tile of cosines, never all of them."""


class Coherence(NamedTuple):
    """Mean absolute cosine of all pairs of distinct vectors."""

    value: float
    lower: float
    upper: float
    """Ends of a 95 % confidence interval; equal to `value` if every pair was counted."""
    floor: float
    """What random directions in as many dimensions give."""
    vectors: int
    """Vectors whose pairs were counted."""
    excluded: int
    """Vectors of length zero, which have no direction."""


def coherence(
    vectors: Float[Tensor, "vectors embed"], *, limit: int | None = None, seed: int = 0
) -> Coherence:
    """Mean $|cos|$ over all pairs of distinct vectors, in tiles.

    Args:
        vectors: One per row. Half precision is computed in float32.
        limit: If there are more vectors than this, the pairs of a random subset of so many stand
            for all. The subset depends only on `seed` and the number of vectors, so that
            curves over training do not jitter.
        seed: Of the subset.

    Returns:
        With fewer than two vectors that have a direction, or a vector that is not finite, `nan`.

    Example:
        >>> coherence(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])).value
        0.3333333333333333
    """
    vectors = vectors.detach()
    largest = vectors.abs().amax(1)
    kept = (largest != 0).nonzero()[:, 0]  # nan is kept, and makes the result nan
    total = len(kept)
    if limit is not None and total > limit:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(total, generator=generator)[:limit].sort().values
        kept = kept[chosen.to(kept.device)]
    used = len(kept)
    value, half = torch.nan, torch.nan
    if used > 1 and bool(largest.isfinite().all()):
        means = _row_sums(vectors, kept) / (used - 1)
        value = min(means.mean().item(), 1.0)  # parallel vectors may round to a little more
        # Jackknife of a U-statistic, with the correction for drawing without replacement.
        half = 1.96 * 2 * math.sqrt(means.var().item() / used * (1 - used / total))
    return Coherence(
        value=value,
        lower=max(value - half, 0.0),
        upper=min(value + half, 1.0),
        floor=random_coherence(vectors.shape[1]),
        vectors=used,
        excluded=len(vectors) - total,
    )


def random_coherence(embed: int) -> float:
    r"""Mean $|\cos|$ of random directions, $\Gamma(d/2)\,/\,(\sqrt\pi\,\Gamma((d+1)/2))$.

    About $\sqrt{2/(\pi d)}$, which is $1/(4d)$ of itself too small.
    """
    return math.exp(math.lgamma(embed / 2) - math.lgamma((embed + 1) / 2)) / math.sqrt(math.pi)


def coherence_readings(place: Place, metric: str, found: Coherence) -> Iterator[Reading]:
    """A coherence, its floor, and how many vectors had no direction, as readings."""
    if math.isnan(found.value):
        status = "not finite" if found.vectors > 1 else "fewer than two nonzero vectors"
        yield place.reading(metric, found.value, status=status)
    elif found.lower < found.upper:
        interval = {"lower": found.lower, "upper": found.upper, "bound": Bound.CI95}
        yield place.reading(metric, found.value, status=OK, **interval)
    else:
        yield place.reading(metric, found.value)
    yield place.reading(f"{metric}_floor", found.floor)
    yield place.reading(f"{metric}_excluded", float(found.excluded))


@dataclass(frozen=True, kw_only=True)
class MlpCoherenceProbe(AbstractWeightProbe):
    """Coherence of the output columns of one MLP: what each unit writes when it fires."""

    need: ClassVar[Need] = Need.MLP_OUT
    limit: int | None = 2048

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        found = coherence(tensors["weight"].mT, limit=self.limit)
        return list(coherence_readings(place, "mlp_coherence", found)), None


PROBE = MlpCoherenceProbe()


def _row_sums(vectors: Tensor, kept: Tensor) -> Float64[Tensor, " kept"]:
    """Sum of $|cos|$ of each kept vector with all the others."""
    sums = torch.zeros(len(kept), dtype=torch.float64, device=vectors.device)
    parts = [slice(a, min(a + TILE, len(kept))) for a in range(0, len(kept), TILE)]
    for i, rows in enumerate(parts):
        left = _unit(vectors[kept[rows]])
        diagonal = (left @ left.T).abs_().fill_diagonal_(0)
        sums[rows] += diagonal.sum(1)
        for columns in parts[i + 1 :]:
            tile = (left @ _unit(vectors[kept[columns]]).T).abs_()
            sums[rows] += tile.sum(1)
            sums[columns] += tile.sum(0)
    return sums


def _unit(vectors: Float[Tensor, "vectors embed"]) -> Float[Tensor, "vectors embed"]:
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    # Divide before squaring: squares of small weights would underflow.
    vectors = vectors / vectors.abs().amax(1, keepdim=True)
    return vectors / (vectors * vectors).sum(1, keepdim=True).sqrt()

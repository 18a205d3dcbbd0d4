r"""Stable rank $\|W\|_F^2 / \|W\|_2^2$ of the lower MLP matrix, with bounds that hold.

JoMA predicts drop-and-bounce: salient components of W grow first, which lowers its stable rank,
then the others catch up (end of Sec. 4; measured in Figure 7). How the bounds are proved, and what
they assume of float32, is told in `docs/explanation/certificate.md`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from joma.metrics import _certificate, _gram, _lanczos
from joma.metrics._lanczos import Found, Warm
from joma.metrics._rows import Rows as Rows
from joma.metrics._survey import UNIT, Survey, survey
from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.records.schema import OK, Bound, Reading

SMALL: Final = 512
"""Up to this many rows or columns, all eigenvalues of the Gram matrix are the cheaper way."""
COLUMNS: Final = 16
"""Width of a Lanczos block: a pass costs hardly more than with 4, and far fewer are needed."""
TOP: Final = 8


@dataclass(frozen=True, kw_only=True)
class StableRank:
    """A stable rank, what is certain about it, and what came along."""

    value: float
    """In `[1, min(rows, cols)]`; `nan` if undefined, and then `status` says why."""
    lower: float
    upper: float
    """The true value lies in `[lower, upper]`, rounding included; see `method`."""
    passes: int
    """Passes over the matrix, after the first one that finds its Frobenius norm."""
    method: Literal["gram", "lanczos", "cholesky"]
    """How the largest singular value was bounded. `gram`: all eigenvalues of the Gram matrix.
    `lanczos`: block Lanczos; the bound fails with probability 1e-9 over the random start.
    `cholesky`: Lanczos came near, and a factorisation of the Gram matrix proved the rest."""
    dtype: torch.dtype
    """Arithmetic of the products. The rounding term is proved for float64, a model for float32."""
    status: str = OK
    top: tuple[float, ...] = ()
    """Leading singular values, descending. By Lanczos each is a lower bound."""
    effective_rank: float | None = None
    """Exponential of the entropy of the normalised singular values, where all of them are known."""
    warm: Warm | None = field(default=None, repr=False, compare=False)
    """A start for the next measurement of the same matrix."""


def stable_rank(
    weight: Float[Tensor, "rows cols"] | Rows,
    rtol: float = 1e-3,
    warm: Warm | None = None,
    *,
    seed: int = 0,
    columns: int = COLUMNS,
    small: int = SMALL,
) -> StableRank:
    r"""Stable rank $\|W\|_F^2 / \|W\|_2^2$ of a matrix, with bounds no wider than about `rtol`.

    A smooth stand-in for rank that ignores the scale of `weight`. Power iteration would find *some*
    singular value; this proves that none is larger. A half-precision matrix is never copied to
    float32 as a whole, a shard never leaves its process, and no global random state is touched.

    Args:
        weight: A matrix of any floating dtype on any device, a `DTensor` sharded by rows or by
            columns, or a source of row blocks.
        rtol: Wanted `upper / lower - 1`. Below about 3e-4 products are taken in float64.
        warm: `StableRank.warm` of an earlier, similar state of the same matrix. It saves passes and
            cannot mislead: fresh random columns join it.
        seed: Of the random start.
        columns: Width of the random start; at least 4.
        small: Largest side for which all eigenvalues of the Gram matrix are computed.

    Returns:
        The value with its bounds. A zero, empty or non-finite matrix has value `nan`: its stable
        rank is undefined, and 0 would look like a measurement.

    Example:
        >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))).value
        1.5
    """
    if not 1e-9 <= rtol <= 0.5:
        raise ValueError(f"rtol must lie in [1e-9, 0.5]; got {rtol}.")
    if columns < _certificate.LEAST:
        raise ValueError(f"columns must be at least {_certificate.LEAST}; got {columns}.")
    rows = weight if isinstance(weight, Rows) else Rows.of(weight)
    with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
        seen = survey(rows)
        if seen.status != OK:
            nan = math.nan
            return StableRank(
                value=nan, lower=nan, upper=nan, passes=0, method="gram", dtype=torch.float64,
                status=seen.status, warm=warm,
            )  # fmt: skip
        if min(rows.shape) <= max(small, 2 * (columns + _lanczos.KEPT)):
            return _by_gram(rows, seen, warm)
        found = _lanczos.largest_eigenvalue(
            rows, seen, rtol=rtol, warm=warm, seed=seed, columns=columns
        )
        return (
            _by_lanczos(rows, seen, found) if found.certified else _by_cholesky(rows, seen, found)
        )


def stable_ranks(
    weights: Float[Tensor, "*batch rows cols"], rtol: float = 1e-3, *, seed: int = 0
) -> list[StableRank]:
    """Stable rank of each matrix of a stack, in the order of the flattened batch.

    One after the other: batched products are slower than a loop on a CPU.
    """
    flat = weights.reshape(-1, *weights.shape[-2:])
    return [stable_rank(weight, rtol, seed=seed) for weight in flat]


def effective_rank(singular_values: Float[Tensor, " values"]) -> float:
    r"""$\exp H$ of the singular values, normalised to sum 1 (Roy and Vetterli, 2007).

    1 for rank one, the number of singular values if all are equal; `nan` for none but zeros.
    """
    share = singular_values / singular_values.sum()
    return float(torch.special.entr(share).sum().exp())


class StableRankProbe(AbstractWeightProbe):
    """Certified stable rank of a lower MLP matrix, and its effective rank where that is free."""

    need: ClassVar = Need.MLP_IN

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        """One reading of `stable_rank`; `effective_rank` beside it if all singular values are."""
        found = stable_rank(tensors["weight"], warm=warm)
        readings = [reading(place, "stable_rank", found)]
        if found.effective_rank is not None:
            readings.append(place.reading("effective_rank", found.effective_rank))
        return readings, found.warm


def reading(place: Place, metric: str, found: StableRank) -> Reading:
    """A stable rank as a reading with its bounds, or `nan` with its reason."""
    if found.status != OK:
        return place.reading(metric, found.value, status=found.status)
    return place.reading(
        metric, found.value, lower=found.lower, upper=found.upper, bound=Bound.CERTIFIED
    )


PROBE = StableRankProbe()


def _by_gram(rows: Rows, seen: Survey, warm: Warm | None) -> StableRank:
    upright = rows.upright()
    eigenvalues = _gram.eigenvalues(_gram.gram(upright, seen.scale))
    return _from_spectrum(rows, seen, eigenvalues, passes=1, method="gram", warm=warm)


def _by_lanczos(rows: Rows, seen: Survey, found: Found) -> StableRank:
    return _bounded(
        rows,
        seen,
        (found.theta - found.error, found.theta, found.level),
        passes=found.passes,
        method="lanczos",
        dtype=found.dtype,
        top=_singular_values(found.ritz, seen),
        warm=found.warm,
    )


def _by_cholesky(rows: Rows, seen: Survey, found: Found) -> StableRank:
    """What Lanczos left open, decided by the Gram matrix."""
    upright = rows.upright()
    length, cols = upright.shape
    products = _gram.gram(upright, seen.scale)
    (below,) = rows.settled(float(_gram.is_below(products, found.level)))
    passes = found.passes + 1
    if below < 1.0:
        eigenvalues = _gram.eigenvalues(products)
        return _from_spectrum(
            rows, seen, eigenvalues, passes=passes, method="gram", warm=found.warm
        )
    cushion = (cols * (cols + 1) * found.level + length * seen.squares) * UNIT
    return _bounded(
        rows,
        seen,
        (found.theta - found.error, found.theta, found.level + cushion),
        passes=passes,
        method="cholesky",
        dtype=found.dtype,
        top=_singular_values(found.ritz, seen),
        warm=found.warm,
    )


def _from_spectrum(
    rows: Rows, seen: Survey, eigenvalues: Float[Tensor, " values"], **more: Any
) -> StableRank:
    length, cols = max(rows.shape), len(eigenvalues)
    largest, error = float(eigenvalues[-1]), _gram.rounding(length, cols, seen.squares)
    # Below the rounding of the largest, an eigenvalue is noise, and its root would count.
    sound = torch.where(eigenvalues > error, eigenvalues, 0.0).sqrt()
    return _bounded(
        rows,
        seen,
        (largest - error, largest, largest + error),
        dtype=torch.float64,
        top=_singular_values(eigenvalues[-TOP:].flip(0).tolist(), seen),
        effective_rank=effective_rank(sound),
        **more,
    )


def _bounded(
    rows: Rows, seen: Survey, eigenvalue: tuple[float, float, float], **more: Any
) -> StableRank:
    """Bounds of the ratio from `(lower, best, upper)` of its denominator."""
    low, best, high = eigenvalue
    # Whatever rounding did, a stable rank is at least 1 and at most the rank.
    lower = max(1.0, seen.squares * (1.0 - seen.rounding) / high)
    upper = max(lower, min(float(min(rows.shape)), seen.squares * (1.0 + seen.rounding) / low))
    value = min(upper, max(lower, seen.squares / best))
    return StableRank(value=value, lower=lower, upper=upper, **more)


def _singular_values(eigenvalues: Sequence[float], seen: Survey) -> tuple[float, ...]:
    return tuple(math.sqrt(max(0.0, each)) / seen.scale for each in eigenvalues)

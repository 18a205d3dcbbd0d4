r"""Block Lanczos on $W^T W$, one read of W a pass, until the largest eigenvalue is certain.

Products with the matrix run where it is, in float32 or float64; the basis, a few columns wide, is
kept in float64 on the CPU and fully reorthogonalised, so that the recurrence holds to float64
rounding and everything that float32 did wrong is in the products.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from joma.metrics import _certificate
from joma.metrics._rows import Rows
from joma.metrics._survey import UNIT, Survey

FAILURE: Final = 1e-9
"""Probability over the random start that a certificate is wrong."""
KEPT: Final = 8
"""Ritz vectors kept for the next measurement of the same matrix."""
_STREAM: Final = 0x6A6F6D61  # our own random stream: weights drawn from seed 0 are not our start
_GENERIC, _COHERENT = 1.0, 4.0  # constants of the float32 rounding model


@dataclass(frozen=True)
class Warm:
    """What a measurement leaves for the next one of the same matrix."""

    vectors: Float[Tensor, "cols kept"]
    """Leading right singular vectors, nearly: float32, on the CPU."""
    generation: int
    """Measurements so far. Each draws other random columns: the certificate needs them to be
    independent of `vectors`, which came from the earlier ones."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where block Lanczos stopped."""

    theta: float
    """Largest Ritz value."""
    error: float
    """What rounding can have added to it, at most."""
    level: float
    """No eigenvalue lies above, if `certified`; else what remains to be shown."""
    certified: bool
    sound: bool
    """False if rounding stood in the way, or was worse than its model (TF32 for float32, say)."""
    passes: int
    dtype: torch.dtype
    ritz: tuple[float, ...]
    """Leading Ritz values, descending."""
    warm: Warm


def arithmetic(
    survey: Survey, shape: tuple[int, int], rtol: float, fresh: int, *, warm: bool
) -> torch.dtype:
    """float32 if its rounding should leave half of the certificate's limit, else float64.

    A good warm start has the top vectors in its kept columns, for which the limit is generous;
    if it was not good, the run notices and is repeated in float64.
    """
    if survey.dtype == torch.float64:
        return torch.float64
    error = (_GENERIC + _COHERENT) * 2.0**-24 * math.sqrt(max(shape)) / rtol
    if warm:
        limit = _certificate.KEPT_SHARE
    else:
        limit = _certificate.overlap_floor(shape[1], fresh, 0, FAILURE)
        error *= math.sqrt(fresh / shape[1])  # the typical share of the top vector in the start
    return torch.float32 if error <= limit / 2 else torch.float64


def rounding(
    eigenvalue: float, squares: float, shape: tuple[int, int], dtype: torch.dtype, size: int
) -> float:
    r"""Bound on $\|\Delta^T x\|$, rounding of the products seen from a fixed unit vector $x$.

    In float64 it is the worst case for a basis of `size` vectors,
    $\sqrt{\mathrm{size}}\,(m + n + 2)\, u \|W\|_F \|W\|$. In float32 it is a model,
    $u \|W\| (\|W\|_F + 4 \sqrt{\max(m, n)}\, \|W\|)$: errors of either sign, and errors of equal
    sign that add up where the data have a mean (Higham and Mary, 2019 and 2020).
    """
    norm, frobenius = math.sqrt(eigenvalue), math.sqrt(squares)
    if dtype == torch.float64:
        return math.sqrt(size) * (sum(shape) + 2) * UNIT * frobenius * norm
    coherent = _COHERENT * math.sqrt(max(shape)) * norm
    return 2.0**-24 * norm * (_GENERIC * frobenius + coherent)


def product(
    rows: Rows, block: Float[Tensor, "cols width"], scale: float, dtype: torch.dtype
) -> Float[Tensor, "width cols"]:
    """Transpose of the Gram matrix times `block`, in one pass over the rows."""
    home = rows.home(dtype)
    x = block.to(home, dtype)
    out = torch.zeros(x.shape[1], x.shape[0], dtype=dtype, device=home)
    for part in rows.blocks(dtype, scale):
        out.addmm_((part @ x).mT, part)
    return rows.total(out).to("cpu", torch.float64)


def largest_eigenvalue(
    rows: Rows,
    survey: Survey,
    *,
    rtol: float,
    warm: Warm | None,
    seed: int,
    columns: int,
) -> Found:
    """Largest eigenvalue of the Gram matrix, certified to `rtol` if the passes suffice.

    Gives up when the basis is half as wide as the Gram matrix: that one is cheaper then.
    """
    fresh = columns if warm is None else max(_certificate.LEAST, columns // 2)
    dtype = arithmetic(survey, rows.shape, rtol, fresh, warm=warm is not None)
    found = _run(rows, survey, rtol, warm, seed, fresh, dtype)
    if found.sound or dtype == torch.float64:
        return found
    exact = _run(rows, survey, rtol, warm, seed, fresh, torch.float64)
    return dataclasses.replace(exact, passes=found.passes + exact.passes)


def _run(
    rows: Rows,
    survey: Survey,
    rtol: float,
    warm: Warm | None,
    seed: int,
    fresh: int,
    dtype: torch.dtype,
) -> Found:
    cols, generation = rows.shape[1], 0 if warm is None else warm.generation
    start, kept = _start(cols, warm, fresh, np.random.default_rng([_STREAM, seed, generation]))
    floor = _certificate.overlap_floor(cols, fresh, kept, FAILURE)
    width = kept + fresh
    limit = max(1, min(rows.shape) // (2 * width))
    basis = torch.empty((limit + 1) * width, cols, dtype=torch.float64)  # its rows are the vectors
    recurrence = torch.zeros((limit + 1) * width, limit * width, dtype=torch.float64)
    basis[:width] = start.mT
    due, before = 1, (0, math.inf)
    for passes in range(1, limit + 1):
        size = passes * width
        block = product(rows, basis[size - width : size].mT, survey.scale, dtype)
        coupling = _extend(basis, recurrence, block, size)
        if passes < min(due, limit):
            continue
        ritz, vectors, skew = _ritz(recurrence[:size, :size])
        theta = float(ritz[-1])
        error = rounding(theta * (1.0 + rtol), survey.squares, rows.shape, dtype, size)
        error += size * UNIT * theta  # of the small float64 steps
        level = (theta - error) * (1.0 + rtol)
        run = _certificate.Projection(ritz, vectors[:width], coupling @ vectors[-width:])
        ceiling = survey.squares * (1.0 + survey.rounding)
        seen, blur, excess = rows.settled(
            *run.blindness(level, ceiling, error + skew, kept, floor), skew / error
        )
        # A run that has seen enough and is not certain is blurred: more passes would not help.
        sound = excess <= 1.0 and not (seen <= 0.5 < blur and seen + blur > 1.0)
        if seen + blur <= 1.0 or passes == limit or not sound:
            break
        due, before = _next_look(passes, seen + blur, before), (passes, seen + blur)
    kept_vectors = (basis[:size].mT @ vectors[:, -KEPT:]).to(torch.float32)
    return Found(
        theta=theta,
        error=error,
        level=level,
        certified=seen + blur <= 1.0,
        sound=sound,
        passes=passes,
        dtype=dtype,
        ritz=tuple(ritz[-KEPT:].flip(0).tolist()),
        warm=Warm(kept_vectors, generation + 1),
    )


def _start(
    cols: int, warm: Warm | None, fresh: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "cols width"], int]:
    """Orthonormal kept columns, then random ones orthogonal to them; and how many are kept."""
    random = torch.from_numpy(rng.standard_normal((cols, fresh)))
    if warm is None:
        return torch.linalg.qr(random).Q, 0
    if warm.vectors.shape[0] != cols:
        raise ValueError(
            f"The warm start is of a matrix with {warm.vectors.shape[0]} columns; this one has "
            f"{cols}. Keep one per matrix, or pass warm=None."
        )
    both = torch.cat([warm.vectors.to("cpu", torch.float64), random], 1)
    return torch.linalg.qr(both).Q, warm.vectors.shape[1]


def _extend(
    basis: Float[Tensor, "room cols"],
    recurrence: Float[Tensor, "room steps"],
    block: Float[Tensor, "width cols"],
    size: int,
) -> Float[Tensor, "width width"]:
    """Write the next block of the basis and its column of the recurrence; return its coupling."""
    width = len(block)
    known = basis[:size]
    here = recurrence[:size, size - width : size]
    for _ in range(2):  # twice is enough
        along = known @ block.mT
        block = block - along.mT @ known
        here += along
    following: Tensor
    coupling: Tensor
    following, coupling = torch.linalg.qr(block.mT)
    if coupling.diagonal().abs().min() < 1e-6 * here.abs().max():
        # A direction is (nearly) exhausted: what stands in for it is rounding, not orthogonal yet.
        along = known @ following
        following, again = torch.linalg.qr(following - known.mT @ along)
        here += along @ coupling
        coupling = again @ coupling
    basis[size : size + width] = following.mT
    recurrence[size : size + width, size - width : size] = coupling
    return coupling


def _ritz(
    compressed: Float[Tensor, "basis basis"],
) -> tuple[Float[Tensor, " basis"], Float[Tensor, "basis basis"], float]:
    """Eigenvalues and vectors of the symmetric part; the norm of the rest, which is rounding."""
    skew = float(torch.linalg.matrix_norm(compressed - compressed.mT)) / 2
    ritz, vectors = torch.linalg.eigh((compressed + compressed.mT) / 2)
    return ritz, vectors, skew


def _next_look(now: int, blind: float, before: tuple[int, float]) -> int:
    """The pass at which to look again: half way to where the decay so far would lead."""
    then, was = before
    rate = (math.log(was) - math.log(blind)) / (now - then)
    return now + max(1, int(math.log(blind) / rate / 2)) if rate > 0 else now + 1

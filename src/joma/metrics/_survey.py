"""One look at a matrix before anything else: its Frobenius norm, its scale, whether it is sound."""

import math
from dataclasses import dataclass
from typing import Final

import torch

from joma.metrics._rows import BLOCK, Rows
from joma.records.schema import OK

UNIT: Final = 2.0**-53
"""Rounding unit of float64."""
NON_FINITE: Final = "non-finite entries"
ZERO: Final = "zero matrix"
EMPTY: Final = "empty matrix"
COMFORT: Final = 40
"""Norms within `2**±COMFORT` leave room in float32 for products of three such matrices."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one pass in float64 says about a matrix."""

    status: str = OK
    """`ok`, or why the matrix has no stable rank."""
    squares: float = math.nan
    """Squared Frobenius norm of the matrix times `scale`."""
    scale: float = 1.0
    """Power of two that keeps products in range; 1 for a matrix of ordinary size."""
    dtype: torch.dtype = torch.float32
    """Narrowest arithmetic that holds the entries: float32, or float64 if they are."""
    rounding: float = 0.0
    """Relative error of `squares`, at most: one rounding unit an entry."""


def survey(rows: Rows) -> Survey:
    """Frobenius norm and status of a matrix, in one pass (or three, for extreme float64 entries).

    Products of float32 and narrower entries are exact in float64, and neither overflow nor
    vanish. `torch.linalg.norm` in float32 errs by 1.2e-2 at 16384x4096; this, by 1e-12.
    """
    if 0 in rows.shape:
        return Survey(status=EMPTY)
    squares, double = _add_up(rows)
    if math.isnan(squares):
        return Survey(status=NON_FINITE)
    size = math.sqrt(squares)
    if not 1e-140 < size < math.inf:  # zero, non-finite, or out of the range of float64 squares
        size = _largest(rows)
        if size == 0.0 or not math.isfinite(size):
            return Survey(status=NON_FINITE if size else ZERO)
    scale, exponent = 1.0, math.frexp(size)[1]
    if abs(exponent) > COMFORT:
        # The factor must itself be a number of the arithmetic that it is used in.
        room = 1000 if double else 126
        scale = 2.0 ** -max(-room, min(room, exponent))
        squares, _ = _add_up(rows, scale)
    return Survey(
        squares=squares,
        scale=scale,
        dtype=torch.float64 if double else torch.float32,
        rounding=(math.prod(rows.shape) + 2) * UNIT,
    )


def _add_up(rows: Rows, scale: float = 1.0) -> tuple[float, bool]:
    """Sum of squares of all entries, and whether some are float64."""
    home = rows.home(torch.float64)
    squares = torch.zeros((), dtype=torch.float64, device=home)
    count, doubles = 0, 0
    for piece in rows.pieces(max(1, BLOCK // (8 * rows.shape[1]))):
        count, doubles = count + len(piece), doubles + (piece.dtype == torch.float64)
        flat = piece.to(home, torch.float64, memory_format=torch.contiguous_format).view(-1)
        flat = flat if scale == 1.0 else flat * scale
        squares += torch.dot(flat, flat)
    rest = torch.tensor([count, doubles], dtype=torch.float64, device=home)
    found, read, double = rows.total(torch.cat([squares[None], rest])).tolist()
    if read != rows.shape[0]:
        raise ValueError(
            f"The source announced {rows.shape[0]} rows and gave {read:.0f}. Its blocks must be "
            "all rows, once, every time that they are read."
        )
    return found, double > 0


def _largest(rows: Rows) -> float:
    """Largest entry, within a factor of the number of owners."""
    largest = torch.zeros((), dtype=torch.float64, device=rows.home(torch.float64))
    for block in rows.blocks(torch.float64):
        largest = torch.maximum(largest, block.abs().max())
    return float(rows.total(largest))

"""One-pass moments of two streams of columns, exact enough for correlations, mergeable."""

from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from joma.probes.base import Sums

CHUNK: Final = 2**17
"""Numbers that are summed in the precision of the data, and stay in cache; then float64."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Correlation:
    """All that is needed of a stream of units and latents, in one pass over it.

    Two of them merge into that of both streams (Chan et al. 1979), so workers and batches can
    be put together in any order. Each batch is shifted by its own pilot mean: plain float32
    moments lose all digits as soon as a mean is large beside the spread.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [4.0]]) + 1e3
        >>> print(f"{Correlation.of(x[:2], -x[:2]).update(x[2:], -x[2:]).matrix().item():.6f}")
        -1.000000
    """

    count: float
    unit_mean: Float64[Tensor, " hidden"]
    latent_mean: Float64[Tensor, " latents"]
    unit_square: Float64[Tensor, " hidden"]
    """Sum of squares about the mean."""
    latent_square: Float64[Tensor, " latents"]
    cross: Float64[Tensor, "hidden latents"]
    """Sum of products about the means."""

    @classmethod
    def of(
        cls, units: Float[Tensor, "samples hidden"], latents: Shaped[Tensor, "samples latents"]
    ) -> "Correlation":
        """The moments of one batch."""
        count, hidden = units.shape
        if not count:
            raise ValueError("A batch needs at least one row; got none. Leave empty batches out.")
        dtype = torch.promote_types(units.dtype, torch.float32)
        rows = min(count, max(128, CHUNK // (hidden + 1)))
        left, right = (_Shifted(part.detach(), rows, dtype) for part in (units, latents))
        product = left.squares.new_zeros((len(right.shift) + 1, hidden + 1))
        for start in range(0, count, rows):
            chunk = slice(start, start + rows)
            product += right.take(chunk).T @ left.take(chunk)  # with the ones: sums and count too
        unit, latent = product[-1, :-1], product[:-1, -1]
        return cls(
            count=float(count),
            unit_mean=left.shift + unit / count,
            latent_mean=right.shift + latent / count,
            unit_square=left.squares - unit.square() / count,
            latent_square=right.squares - latent.square() / count,
            cross=product[:-1, :-1].T - torch.outer(unit, latent) / count,
        )

    @classmethod
    def from_sums(cls, sums: Sums) -> "Correlation":
        """The moments that were taken apart by `sums` and added up."""
        count = sums["count"].item()
        unit, latent = sums["unit"] / count, sums["latent"] / count
        return cls(
            count=count,
            unit_mean=unit,
            latent_mean=latent,
            unit_square=_centred(sums["unit_square"], unit, count),
            latent_square=_centred(sums["latent_square"], latent, count),
            cross=sums["cross"] - count * torch.outer(unit, latent),
        )

    def sums(self) -> dict[str, Tensor]:
        """Plain moments, which add up over batches and ranks.

        Float64 moments of float32 data lose less to a large mean than the data already have.
        """
        count, unit, latent = self.count, self.unit_mean, self.latent_mean
        return {
            "count": unit.new_tensor(count),
            "unit": count * unit,
            "latent": count * latent,
            "unit_square": self.unit_square + count * unit.square(),
            "latent_square": self.latent_square + count * latent.square(),
            "cross": self.cross + count * torch.outer(unit, latent),
        }

    def update(
        self, units: Float[Tensor, "samples hidden"], latents: Shaped[Tensor, "samples latents"]
    ) -> "Correlation":
        """These moments with one more batch."""
        return self.merge(Correlation.of(units, latents))

    def merge(self, other: "Correlation") -> "Correlation":
        """The moments of both streams together."""
        count = self.count + other.count
        unit, latent = other.unit_mean - self.unit_mean, other.latent_mean - self.latent_mean
        share, spread = other.count / count, self.count * other.count / count
        return Correlation(
            count=count,
            unit_mean=self.unit_mean + share * unit,
            latent_mean=self.latent_mean + share * latent,
            unit_square=self.unit_square + other.unit_square + spread * unit.square(),
            latent_square=self.latent_square + other.latent_square + spread * latent.square(),
            cross=self.cross + other.cross + spread * torch.outer(unit, latent),
        )

    def matrix(self) -> Float64[Tensor, "hidden latents"]:
        """Correlation of each unit with each latent; `nan` where one of them never varies."""
        unit = _spread(self.unit_square, self.unit_mean, self.count)
        latent = _spread(self.latent_square, self.latent_mean, self.count)
        return (self.cross / unit[:, None] / latent).clamp(-1, 1)


class _Shifted:
    """Chunks of columns about their pilot mean, with a column of ones, in one reused buffer."""

    def __init__(self, columns: Tensor, rows: int, dtype: torch.dtype):
        self.columns = columns
        # A float64 mean rounds back to the constant of a constant column, which then vanishes.
        self.shift = columns[:rows].mean(0, dtype=torch.float64).to(dtype)
        self.squares = torch.zeros_like(self.shift, dtype=torch.float64)
        self._buffer = columns.new_ones((rows, len(self.shift) + 1), dtype=dtype)

    def take(self, chunk: slice) -> Tensor:
        """A chunk, ready for the product; its squares are added to `squares`."""
        part = self.columns[chunk].to(self.shift.dtype)
        buffer = self._buffer[: len(part)]
        inner = torch.sub(part, self.shift, out=buffer[:, :-1])
        self.squares += (inner * inner).sum(0)
        return buffer


def _spread(square: Tensor, mean: Tensor, count: float) -> Tensor:
    """Root of the sum of squares; `nan` if it is no more than rounding of the mean."""
    rounding = count * (8 * torch.finfo(torch.float64).eps * mean).square()
    return torch.where(square > rounding, square, torch.nan).sqrt()


def _centred(square: Tensor, mean: Tensor, count: float) -> Tensor:
    """Squares about the mean; 0 where nothing but the rounding of float32 data can be left."""
    raw = count * mean.square()
    return torch.where(square - raw > 64 * torch.finfo(torch.float64).eps * raw, square - raw, 0.0)

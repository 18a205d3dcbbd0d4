"""A matrix as a stream of row blocks: a tensor, one shard of it, or a file, all read alike."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

BLOCK: Final = 2**19
"""Bytes of a block in the arithmetic used: it is read from memory once, then from the cache."""


def _alone(summand: Tensor) -> Tensor:
    return summand


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A matrix whose rows come in blocks, as often as asked, and are never all held.

    The blocks may have any size and any floating dtype. If several processes own the rows
    together, each sees its own blocks, in any order, and `total` adds up what they found.

    Example:
        A file, read by row ranges (`tensor` could be a `safetensors` slice):

        >>> tensor = torch.eye(6, 4)
        >>> rows = Rows(shape=(6, 4), read=lambda: (tensor[i : i + 2] for i in (0, 2, 4)))
        >>> sum(len(block) for block in rows.blocks(torch.float64))
        6
    """

    shape: tuple[int, int]
    """Rows and columns of the whole matrix, over all owners."""
    read: Callable[[], Iterable[Tensor]]
    """Called once a pass: the row blocks that this process owns."""
    total: Callable[[Tensor], Tensor] = _alone
    """Sum of a tensor over all owners (an all-reduce); it may write into its argument."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    whole: Tensor | None = field(default=None, repr=False)
    """The matrix itself where one tensor holds it: then its transpose is at hand, too."""

    @classmethod
    def of(cls, weight: Tensor) -> "Rows":
        """Blocks of a tensor, or of the local shard of a `DTensor`, without copying it.

        A matrix stored by columns (a transposed `Conv1D` weight) is read as its transpose, and a
        column-sharded one too: the singular values are the same, and blocks follow the memory.
        """
        if weight.dim() != 2 or not weight.is_floating_point():
            raise ValueError(
                f"A weight must be a matrix of floats; got shape {tuple(weight.shape)}, "
                f"{weight.dtype}. Dequantise it first; a stack of matrices goes to stable_ranks."
            )
        if hasattr(weight, "placements"):
            return _of_dtensor(weight)
        weight = weight.detach()
        if weight.stride(0) < weight.stride(1):
            weight = weight.mT
        shape = (weight.shape[0], weight.shape[1])
        return cls(shape=shape, read=lambda: [weight], device=weight.device, whole=weight)

    @classmethod
    def shard(cls, local: Float[Tensor, "rows cols"], total: Callable[[Tensor], Tensor]) -> "Rows":
        """The rows that this process owns, of a matrix that others own the rest of.

        Every owner must call this, and everything that reads the result, as for any collective.
        """
        count = torch.tensor([len(local)], dtype=torch.int64, device=local.device)
        shape = (int(total(count)), local.shape[1])
        return cls(shape=shape, read=lambda: [local.detach()], total=total, device=local.device)

    def pieces(self, count: int) -> Iterator[Tensor]:
        """Own rows as they are stored, at most `count` at a time."""
        for part in self.read():
            if part.dim() != 2 or part.shape[1] != self.shape[1]:
                raise ValueError(
                    f"A row block must have shape (rows, {self.shape[1]}); got {tuple(part.shape)}."
                )
            for at in range(0, len(part), count):
                yield part[at : at + count]

    def blocks(
        self, dtype: torch.dtype, scale: float = 1.0, *, size: int = BLOCK, least: int = 1
    ) -> Iterator[Tensor]:
        """Own blocks in arithmetic of `dtype`, times `scale`, about `size` bytes each."""
        home, count = self.home(dtype), size // (dtype.itemsize * max(1, self.shape[1]))
        for piece in self.pieces(max(least, count)):
            block = piece.to(device=home, dtype=dtype)
            yield block if scale == 1.0 else block * scale

    def home(self, dtype: torch.dtype) -> torch.device:
        """Where arithmetic of `dtype` takes place: on the device, if it knows the dtype."""
        lacks = self.device.type == "mps" and dtype == torch.float64
        return torch.device("cpu") if lacks else self.device

    def settled(self, *numbers: float) -> tuple[float, ...]:
        """The mean of each number over all owners, the same everywhere to the last bit.

        Owners compute the same things and may round them differently; what they decide by must
        not differ, or one would wait for a sum that the others no longer take part in.
        """
        if self.total is _alone:
            return numbers
        home = self.home(torch.float64)
        votes = torch.tensor([*numbers, 1.0], dtype=torch.float64, device=home)
        *sums, owners = self.total(votes).tolist()
        return tuple(each / owners for each in sums)

    def upright(self) -> "Rows":
        """The same matrix, or its transpose if that is at hand and has fewer columns."""
        rows, cols = self.shape
        if self.whole is None or rows >= cols:
            return self
        flipped = self.whole.mT
        return Rows(shape=(cols, rows), read=lambda: [flipped], device=self.device, whole=flipped)


def _of_dtensor(weight: Any) -> Rows:
    axes = {getattr(p, "dim", None) for p in weight.placements if not p.is_replicate()}
    if len(axes) > 1 or None in axes:
        raise ValueError(
            "A distributed weight must be sharded by rows or by columns, not both, and not be a "
            f"partial sum; got placements {weight.placements}. Redistribute it before."
        )
    local, mesh = weight.to_local(), weight.device_mesh
    if not axes:
        return Rows.of(local)
    groups = [mesh.get_group(i) for i, p in enumerate(weight.placements) if not p.is_replicate()]

    def total(summand: Tensor) -> Tensor:
        for group in groups:
            dist.all_reduce(summand, group=group)
        return summand

    return Rows.shard(local if axes == {0} else local.mT, total)

"""How the sums of a stream probe are put together: by adding, and by `max:` where adding is wrong.

Batches, accumulation steps and ranks are combined entry by entry. An entry whose name starts
with `max:` is combined by taking the larger value (the largest attention logit of two batches
is not their sum); every other entry is added. Both operations are associative and commutative,
so the order of batches and ranks does not matter.
"""

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from joma.probes.base import Sums

MAX: Final = "max:"
"""Entries whose name starts so are combined by maximum. Non-finite is stored as +inf, not `nan`:
collectives do not promise to carry a `nan` through a maximum."""


def combine(one: Sums, other: Sums) -> dict[str, Tensor]:
    """The sums of two parts of a stream as the sums of the whole.

    Example:
        >>> one, other = {"rows": torch.tensor(2.0)}, {"rows": torch.tensor(3.0)}
        >>> combine(one, other)["rows"]
        tensor(5.)
    """
    if one.keys() != other.keys():
        raise ValueError(
            f"Only sums of the same probe can be combined; got entries {sorted(one)} "
            f"and {sorted(other)}."
        )
    return {
        name: torch.maximum(sums, other[name]) if name.startswith(MAX) else sums + other[name]
        for name, sums in one.items()
    }


def all_reduce(sums: Sums, group: Any = None) -> dict[str, Tensor]:
    """The sums of all ranks, on every rank, by one collective for each of the two kinds.

    Every rank must hold the same entries in the same shapes.
    """
    whole: dict[str, Tensor] = {}
    for operation, kind in ((dist.ReduceOp.SUM, False), (dist.ReduceOp.MAX, True)):
        names = sorted(name for name in sums if name.startswith(MAX) is kind)
        if not names:
            continue
        flat = torch.cat([sums[name].reshape(-1) for name in names])
        dist.all_reduce(flat, operation, group=group)
        parts = torch.split(flat, [sums[name].numel() for name in names])
        whole |= {n: part.view_as(sums[n]) for n, part in zip(names, parts, strict=True)}
    return whole

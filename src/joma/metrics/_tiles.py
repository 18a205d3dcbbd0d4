"""Attention scores a block of rows at a time: right for every call, on every device."""

from collections.abc import Iterator
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from joma.metrics import _parts, _visible
from joma.probes.base import AttentionCall

TILE_BYTES: Final = 2**20
"""Scores that stand in memory at once on a CPU: they fit its second-level cache."""
TILE_BYTES_ELSEWHERE: Final = 64 * TILE_BYTES
NEGLIGIBLE: Final = -80.0
"""A score this far below the largest weighs 1e-35. Where exp leaves the normal numbers of float32
(below -87; a hidden key is at -inf) it is a hundred times slower."""


def tiles(
    call: AttentionCall,
) -> tuple[
    Float[Tensor, "batch head query"],
    Float[Tensor, "batch head query"],
    Float[Tensor, "batch head query"],
]:
    """Entropy, log-sum-exp and largest score of each row; of a row that sees no key, anything."""
    shape, dtype = call.query.shape[:3], _parts.precision(call)
    entropy = torch.zeros(shape, dtype=dtype, device=call.query.device)
    lse, top = torch.full_like(entropy, -torch.inf), torch.full_like(entropy, -torch.inf)
    for where, scores in scored(call):
        largest = scores.amax(-1, keepdim=True)
        weights = scores.sub_(largest).clamp_(min=NEGLIGIBLE).exp()
        total = weights.sum(-1)
        entropy[where] = total.log() - scores.mul_(weights).sum(-1) / total
        lse[where] = largest[..., 0] + total.log()
        top[where] = largest[..., 0]
    return entropy, lse, top


def largest_score(call: AttentionCall) -> Float[Tensor, " head"]:
    """The largest score of each head over all its rows; -inf if the head sees no key."""
    largest = call.query.new_full(call.query.shape[1:2], -torch.inf, dtype=_parts.precision(call))
    for (_, heads, _), scores in scored(call):
        largest[heads] = torch.maximum(largest[heads], scores.flatten(1).amax(-1))
    return largest


def scored(
    call: AttentionCall,
) -> Iterator[tuple[tuple[int, slice, slice], Float[Tensor, "head query key"]]]:
    """Every block of scores, with the element, heads and queries it belongs to.

    Hidden keys hold -inf. A block may be written over, and the next one will: they share memory,
    as fresh memory for each would cost as much as the product.
    """
    dtype = _parts.precision(call)
    batch, heads = call.query.shape[:2]
    kv_heads, keys = call.key.shape[1:3]
    group = heads // kv_heads
    limit = TILE_BYTES if call.query.device.type == "cpu" else TILE_BYTES_ELSEWHERE
    limit //= dtype.itemsize
    size = max(1, min(_visible.BLOCK, limit // max(1, group * keys)))
    largest = min(max(limit, group * keys), heads * call.query.shape[2] * keys)
    memory = torch.empty(largest, dtype=dtype, device=call.query.device)
    for element in range(batch):
        one = _parts.cut(call, slice(element, element + 1), slice(0, heads))
        key = one.key[0].to(dtype)
        for rows in _visible.row_blocks(call, size):
            seen, shown = _visible.block(one, rows)
            if seen.start >= seen.stop:
                continue
            # Masking costs as much as the product: mask only the keys that some row does not see.
            partial = slice(0, 0) if shown is None else _visible.columns(shown, every=True)
            query = one.query[0, :, rows].to(dtype) * call.scale
            height, width = rows.stop - rows.start, seen.stop - seen.start
            for part in _parts.slices(kv_heads, limit // (group * height * width)):
                mine = slice(part.start * group, part.stop * group)
                folded = torch.unflatten(query[mine], 0, (-1, group)).flatten(1, 2)
                scores = memory[: len(query[mine]) * height * width].view(len(folded), -1, width)
                scores = torch.bmm(folded, key[part, seen].mT, out=scores).view(-1, height, width)
                _bend(one, scores, mine, rows, seen)
                if shown is not None and partial.start < partial.stop:
                    own = shown[0, mine if shown.shape[1] > 1 else slice(None), :, partial]
                    scores[..., partial].masked_fill_(~own, -torch.inf)
                yield (element, mine, rows), scores


def _bend(
    call: AttentionCall,
    scores: Float[Tensor, "head query key"],
    heads: slice,
    rows: slice,
    keys: slice,
) -> None:
    """Put soft cap and bias, in that order, on raw scores where they stand."""
    if call.softcap is not None:
        scores.div_(call.softcap).tanh_().mul_(call.softcap)
    if call.bias is not None:
        bias = call.bias[0, heads if call.bias.shape[1] > 1 else slice(None)]
        scores += bias[:, rows if bias.shape[1] > 1 else slice(None), keys]

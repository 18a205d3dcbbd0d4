"""Which keys each query of an attention call sees. Geometry only: no scores are computed here.

`causal`, `window` and `cu_seqlens` leave each query one interval of keys, the same in every
element of the batch; `mask` and `bias` then hide single keys. Everything that walks over a call
walks over blocks of queries and asks `block` for the keys they see.
"""

import dataclasses
from collections.abc import Iterator
from typing import Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.probes.base import AttentionCall

BLOCK: Final = 256
"""Queries per block. Masks are built a block at a time, so none has the size of the scores."""


def checked(call: AttentionCall) -> AttentionCall:
    """The call, if its parts fit together; a bias that only hides keys is turned into a mask.

    Raises:
        ValueError: A sentence that says what does not fit and what to pass instead.
    """
    problem = _problem(call)
    if problem:
        raise ValueError(problem)
    if call.bias is None:
        return call
    for rows in row_blocks(call):  # a real bias shows itself in the first block
        part = _cut(call.bias, rows, slice(None))
        if not bool(((part == 0) | hides(part)).all()):
            return call
    return dataclasses.replace(call, bias=None, mask=_both(call.mask, ~hides(call.bias)))


def intervals(
    call: AttentionCall, rows: slice = slice(None)
) -> tuple[Int[Tensor, " query"], Int[Tensor, " query"]]:
    """First key, and one past the last key, that `causal`, `window` and `cu_seqlens` leave open."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    position = torch.arange(queries, device=call.query.device)[rows] + (keys - queries)
    start = torch.zeros_like(position)
    stop = (position + 1).clamp(min=0) if call.causal else torch.full_like(position, keys)
    if call.window is not None:
        start = (position - call.window + 1).clamp(min=0)
    if call.cu_seqlens is not None:
        borders = call.cu_seqlens.to(position)
        document = torch.searchsorted(borders, position, right=True)
        start = torch.maximum(start, borders[document - 1])
        stop = torch.minimum(stop, borders[document])
    return start, stop


def row_blocks(call: AttentionCall, size: int = BLOCK) -> Iterator[slice]:
    """Consecutive blocks of queries."""
    queries = call.query.shape[2]
    return (slice(a, min(a + size, queries)) for a in range(0, queries, size))


def block(
    call: AttentionCall, rows: slice
) -> tuple[slice, Bool[Tensor, "#batch #head #query key"] | None]:
    """The range of keys that a block of queries sees, and where in it; None means everywhere."""
    start, stop = intervals(call, rows)
    low, high = int(start.min()), int(stop.max())
    if low >= high:
        return slice(0, 0), None
    keys = slice(low, high)
    shown = _single_keys(call, rows, keys)
    at = torch.arange(low, high, device=start.device)
    if int(start.max()) > low:
        shown = _both(shown, (at >= start[:, None])[None, None])
    if int(stop.min()) < high:
        shown = _both(shown, (at < stop[:, None])[None, None])
    if shown is None or (call.mask is None and call.bias is None):
        return keys, shown
    # A mask from a model often carries the causal triangle: leave its empty columns out.
    some = columns(shown, every=False)
    return slice(low + some.start, low + some.stop), shown[..., some]


def columns(shown: Bool[Tensor, "#batch #head #query key"], *, every: bool) -> slice:
    """The range of keys that some row sees; with `every`, the range that some row does not see.

    Bytes instead of booleans: their extremes are forty times faster.
    """
    seen = shown.to(torch.uint8) if shown.stride(-1) != 1 else shown.view(torch.uint8)
    flags = seen.amin(2).amin((0, 1)) == 0 if every else seen.amax(2).amax((0, 1)) > 0
    found = flags.nonzero()
    return slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 0)


def count(call: AttentionCall) -> Int[Tensor, "#batch #head query"]:
    """How many keys each query sees; 0 for a query in the padding."""
    if call.mask is None and call.bias is None:
        start, stop = intervals(call)
        return (stop - start).clamp(min=0)[None, None]
    counts = []
    for rows in row_blocks(call):
        keys, shown = block(call, rows)
        size = rows.stop - rows.start
        if shown is None:
            full = torch.full((1, 1, size), keys.stop - keys.start, device=call.query.device)
        else:  # int32: a sum of booleans in the default int64 is six times slower
            full = shown.sum(-1, dtype=torch.int32).long().expand(-1, -1, size)
        counts.append(full)
    return _joined(call, counts)


def outcomes(
    call: AttentionCall, keys: Int[Tensor, "#batch #head query"]
) -> Int[Tensor, "#batch #head query"]:
    """What attention chooses among: the keys seen, and a learned sink; 0 where no key is seen."""
    return keys if call.sinks is None else torch.where(keys > 0, keys + 1, 0)


def first(call: AttentionCall) -> Int[Tensor, "#batch #head query"]:
    """The first key each query sees; for a query that sees none, any index."""
    if call.mask is None and call.bias is None:
        return intervals(call)[0][None, None]
    found = []
    for rows in row_blocks(call):
        keys, shown = block(call, rows)
        size = rows.stop - rows.start
        if shown is None or keys.start == keys.stop:
            here = torch.zeros((1, 1, size), dtype=torch.int64, device=call.query.device)
        else:
            here = shown.to(torch.uint8).argmax(-1).expand(-1, -1, size)
        found.append(here + keys.start)
    return _joined(call, found)


def _joined(call: AttentionCall, parts: list[Tensor]) -> Tensor:
    """Blocks of rows, put together; a block whose mask was trivial may lack batch or head."""
    if not parts:
        return torch.zeros((1, 1, 0), dtype=torch.int64, device=call.query.device)
    batch, head = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    return torch.cat([part.expand(batch, head, -1) for part in parts], -1)


def _single_keys(
    call: AttentionCall, rows: slice, keys: slice
) -> Bool[Tensor, "#batch #head #query key"] | None:
    shown = None if call.mask is None else _cut(call.mask, rows, keys)
    if call.bias is not None:
        shown = _both(shown, ~hides(_cut(call.bias, rows, keys)))
    return shown


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one & other


def _cut(tensor: Tensor, rows: slice, keys: slice) -> Tensor:
    return tensor[:, :, rows if tensor.shape[2] > 1 else slice(None), keys]


def hides(bias: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """-inf hides a key; so does the lowest number of a dtype, which many models write instead."""
    return bias <= torch.finfo(bias.dtype).min / 2


def _problem(call: AttentionCall) -> str | None:
    return _shapes_problem(call) or _reach_problem(call)


def _shapes_problem(call: AttentionCall) -> str | None:
    batch, heads, queries, width = call.query.shape
    key_batch, kv_heads, keys, key_width = call.key.shape
    if (batch, width) != (key_batch, key_width) or kv_heads == 0 or heads % kv_heads:
        return (
            "query and key must agree in batch and width, and query heads must be a multiple of "
            f"key heads; got query {tuple(call.query.shape)} and key {tuple(call.key.shape)}."
        )
    if not (call.query.is_floating_point() and call.key.is_floating_point()):
        return f"query and key must be floating point; got {call.query.dtype}, {call.key.dtype}."
    for name, tensor in (("mask", call.mask), ("bias", call.bias)):
        fits = zip(getattr(tensor, "shape", ()), (batch, heads, queries), strict=False)
        if tensor is not None and (
            tensor.ndim != 4 or tensor.shape[3] != keys or any(n not in (1, m) for n, m in fits)
        ):
            return (
                f"{name} must broadcast to (batch, head, query, key) = "
                f"{(batch, heads, queries, keys)} with all {keys} keys written out; "
                f"got {tuple(tensor.shape)}."
            )
    if call.sinks is not None and call.sinks.shape != (heads,):
        return f"sinks must hold one logit per head ({heads}); got {tuple(call.sinks.shape)}."
    return None


def _reach_problem(call: AttentionCall) -> str | None:
    if call.softcap is not None and not call.softcap > 0:
        return f"softcap must be positive; got {call.softcap}. Leave it out for no cap."
    if call.window is not None and not (call.causal and call.window >= 1):
        return (
            "window counts keys back from the query, so it needs causal=True and window >= 1; got "
            f"causal={call.causal}, window={call.window}. Pass a two-sided window as mask."
        )
    if call.cu_seqlens is None:
        return None
    batch, _, queries, _ = call.query.shape
    borders, keys = call.cu_seqlens, call.key.shape[2]
    if batch != 1 or queries != keys:
        return (
            "cu_seqlens packs documents into one row, with as many queries as keys; got batch "
            f"{batch}, {queries} queries, {keys} keys. Pass separate rows with a mask instead."
        )
    if (
        len(borders) < 2
        or borders[0] != 0
        or borders[-1] != keys
        or bool((borders.diff() < 0).any())
    ):
        return (
            f"cu_seqlens must rise from 0 to the number of keys ({keys}); got {borders.tolist()}."
        )
    return None

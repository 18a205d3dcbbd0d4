"""Parts of an attention call, each a call again: some elements and heads, or picked queries."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor

from joma.metrics import _visible
from joma.probes.base import AttentionCall


def precision(call: AttentionCall) -> torch.dtype:
    """float32, or float64 if the call has it: the identity errs by up to 0.06 nats in bfloat16."""
    dtype = torch.promote_types(call.query.dtype, call.key.dtype)
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextmanager
def exactly(call: AttentionCall) -> Iterator[None]:
    """No gradient (the fused kernel's would be wrong), and no autocast back to half precision."""
    with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
        yield


def slices(total: int, size: int) -> Iterator[slice]:
    """Consecutive slices of `range(total)`, each of `size` or less, and never of 0."""
    size = max(1, size)
    return (slice(a, min(a + size, total)) for a in range(0, total, size))


def cut(call: AttentionCall, batch: slice, heads: slice) -> AttentionCall:
    """Some batch elements and some query heads, whole groups or inside one, with their keys."""
    group = call.query.shape[1] // call.key.shape[1]

    def part(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        elements = batch if tensor.shape[0] > 1 else slice(None)
        return tensor[elements, heads if tensor.shape[1] > 1 else slice(None)]

    return dataclasses.replace(
        call,
        query=call.query[batch, heads],
        key=call.key[batch, heads.start // group : -(-heads.stop // group)],
        mask=part(call.mask),
        bias=part(call.bias),
        sinks=None if call.sinks is None else call.sinks[heads],
    )


def take(call: AttentionCall, element: int, heads: list[int]) -> AttentionCall:
    """Any query heads of one batch element, each with a copy of its keys; all of them uncopied."""
    one = cut(call, slice(element, element + 1), slice(0, call.query.shape[1]))
    if len(heads) == call.query.shape[1]:
        return one
    group = call.query.shape[1] // call.key.shape[1]

    def part(tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or tensor.shape[1] == 1 else tensor[:, heads]

    return dataclasses.replace(
        one,
        query=one.query[:, heads],
        key=one.key[:, [head // group for head in heads]],
        mask=part(one.mask),
        bias=part(one.bias),
        sinks=None if one.sinks is None else one.sinks[heads],
    )


def pick(call: AttentionCall, element: int, rows: Int[Tensor, "head picked"]) -> AttentionCall:
    """Some queries of one batch element, each head its own; what they see is written as a mask."""
    heads, keys, width = rows.shape[0], call.key.shape[2], call.query.shape[3]
    start, stop = _visible.intervals(call)
    at = torch.arange(keys, device=rows.device)
    shown = (at >= start[rows][..., None]) & (at < stop[rows][..., None])  # [head, picked, key]

    def part(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        one = tensor[element if tensor.shape[0] > 1 else 0]  # [#head, #query, key]
        if one.shape[1] == 1:
            return one[None]
        return one.expand(heads, -1, -1).gather(1, rows[..., None].expand(-1, -1, keys))[None]

    mask = part(call.mask)
    return AttentionCall(
        query=call.query[element].gather(1, rows[..., None].expand(-1, -1, width))[None],
        key=call.key[element : element + 1],
        scale=call.scale,
        mask=shown[None] if mask is None else shown & mask,
        bias=part(call.bias),
        softcap=call.softcap,
        sinks=call.sinks,
    )

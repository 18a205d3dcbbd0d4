r"""Entropy of attention rows from the attention kernel itself, with keys in place of values.

With $p = \mathrm{softmax}(s)$ and $s_{ij} = \mathrm{scale}\, q_i \cdot k_j$,

$$H_i = \mathrm{lse}_i - \sum_j p_{ij} s_{ij}
     = \mathrm{lse}_i - \mathrm{scale}\; q_i \cdot (P K)_i,$$

and the kernel returns both $PK$ and lse, without the attention matrix and at its own speed.
"""

import functools
from typing import Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from joma.metrics import _parts, _visible
from joma.probes.base import AttentionCall

CHUNK_BYTES: Final = 8 * 2**20
"""Queries that go into one kernel call: bounds what upcasting and the output take."""


def fused(
    call: AttentionCall,
) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
    """Entropy and log-sum-exp of each row over its keys; of a row that sees none, anything."""
    dtype = _parts.precision(call)
    batch, heads, queries, width = call.query.shape
    entropy = torch.zeros((batch, heads, queries), dtype=dtype, device=call.query.device)
    lse = torch.full_like(entropy, -torch.inf)
    if 0 in (call.query.numel(), call.key.numel()):  # the kernel would divide by zero
        return entropy, lse
    group = heads // call.key.shape[1]
    fit = CHUNK_BYTES // (queries * width * dtype.itemsize)  # heads per kernel call
    for mine in _parts.slices(heads, fit // group * group or group):
        for elements in _parts.slices(batch, fit // heads):
            part = _parts.cut(call, elements, mine)
            entropy[elements, mine], lse[elements, mine] = _rows(part, dtype)
    return entropy, lse


def _rows(
    call: AttentionCall, dtype: torch.dtype
) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
    query, key = _contiguous(call.query.to(dtype)), _contiguous(call.key.to(dtype))
    if _is_one_kernel_call(call):
        mean, lse = _kernel(query, key, call.scale, call.causal, call.mask)
    else:
        mean, lse = torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf)
        for rows in _visible.row_blocks(call):
            seen, shown = _visible.block(call, rows)
            if seen.start < seen.stop:
                mean[:, :, rows], lse[:, :, rows] = _kernel(
                    query[:, :, rows], key[:, :, seen], call.scale, False, shown
                )
    return lse - call.scale * mean.mul_(query).sum(-1), lse


def _contiguous(tensor: Tensor) -> Tensor:
    """With a dense last axis: the kernel takes it for dense without looking."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _is_one_kernel_call(call: AttentionCall) -> bool:
    """The kernel's causal triangle starts at the first key: right for square calls only."""
    square = call.query.shape[2] == call.key.shape[2]
    keys_only = call.mask is None or call.mask.shape[2] == 1
    unbroken = call.window is None and call.cu_seqlens is None
    return keys_only and unbroken and (square or not call.causal)


def _kernel(
    query: Float[Tensor, "batch head query width"],
    key: Float[Tensor, "batch kv_head key width"],
    scale: float,
    causal: bool,
    shown: Bool[Tensor, "#batch #head #query key"] | None,
) -> tuple[Float[Tensor, "batch head query width"], Float[Tensor, "batch head query"]]:
    """Mean key and log-sum-exp of each row. The kernel wants its mask as numbers to add."""
    added = None
    if shown is not None:
        added = torch.zeros(shown.shape, dtype=query.dtype).masked_fill_(~shown, -torch.inf)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mean, lse = attend(query, key, key, 0.0, causal, attn_mask=added, scale=scale)
    return mean, lse


@functools.cache
def kernel_is_right() -> bool:
    """Whether this torch has the kernel, and it treats groups, masks and the triangle as we think.

    The operator is private to torch, so it is tried once on a small call instead of trusted.
    """
    grid = torch.arange(2 * 4 * 5 * 3, dtype=torch.float64)
    query = (grid * 0.7).sin().view(2, 4, 5, 3)
    key = (grid[:60] * 1.3).cos().view(2, 2, 5, 3)
    each = key.repeat_interleave(2, dim=1)
    shown = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    shown[1, ..., 3] = False
    hidden = ~shown | torch.ones(5, 5, dtype=torch.bool).triu(1)
    scores = (0.5 * query @ each.mT).masked_fill(hidden, -torch.inf)
    try:
        mean, lse = _kernel(query, key, 0.5, True, shown)
    except (AttributeError, RuntimeError, TypeError):
        return False
    right = torch.allclose(lse, scores.logsumexp(-1))
    return right and torch.allclose(mean, scores.softmax(-1) @ each)

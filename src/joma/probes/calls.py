"""From the arguments of an attention function to an `AttentionCall` that means the same.

Implementations disagree about their arguments: one hides keys by a boolean mask, one by adding the
lowest number of a dtype, one by the lengths of packed documents, and `is_causal` counts for some
and not for others. `dense` computes what a call says, to hold it against what a model computed.
"""

from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from joma._core.errors import JomaError
from joma.probes.base import AttentionCall

Kind: TypeAlias = Literal["sdpa", "eager", "flash", "flex"]
"""How an implementation reads its arguments."""

LOWEST_SCORE = -1e8
"""Below this a score means hidden: no logit that a model computes comes near it."""


def read(
    kind: str,
    query: Tensor,
    key: Tensor,
    mask: Any = None,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    position_ids: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    causal: bool = False,
) -> AttentionCall:
    """The call that an implementation of transformers computes from these arguments.

    Args:
        kind: `sdpa` is causal only without a mask; `eager` and `flex` only by their mask;
            `flash` always, and it alone reads `window` and `position_ids`.
        query: (batch, head, query, width).
        key: (batch, kv_head, key, width).
        mask: Boolean or additive of four dimensions, boolean (batch, key), or a block mask.
        bias: Added to the scores.
        sinks: A logit per head, ignored by `sdpa`.
        cu_seqlens: Borders of packed documents; without a mask they are honoured.
        position_ids: Where `flash` finds the borders of packed documents if nothing else says.
        scale: `width**-0.5` if left out.
        softcap: Bound on the scores.
        window: Of `flash`, which sees this many keys.
        causal: Whether the module is a causal one.
    """
    queries, keys = query.shape[2], key.shape[2]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if kind == "flash":
        if cu_seqlens is None and mask is None and position_ids is not None and len(query) == 1:
            cu_seqlens = _borders(position_ids, queries)
    else:
        window = None
        causal = causal and kind == "sdpa" and mask is None
    causal = causal and queries > 1
    if causal and kind == "sdpa" and keys > queries:
        key, keys = key[:, :, :queries], queries  # an empty static cache, as transformers cuts it
        bias = None if bias is None else bias[..., :keys]
    shown, added = visible(mask, query, keys)
    if bias is not None:
        added = bias if added is None else bias + added
    return AttentionCall(
        query=query,
        key=key,
        scale=scale,
        causal=causal,
        window=window if causal else None,
        mask=shown,
        bias=added,
        cu_seqlens=cu_seqlens if mask is None else None,
        softcap=softcap,
        sinks=None if kind == "sdpa" else sinks,
    )


def read_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """The call of `torch.nn.functional.scaled_dot_product_attention` with these arguments."""
    query, key = _four(query), _four(key)
    queries, keys = query.shape[2], key.shape[2]
    causal = is_causal and queries <= keys
    if causal:
        key = key[:, :, :queries]  # torch aligns the triangle with the first key, not the last
    if is_causal and not causal:
        attn_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    shown, added = visible(None if attn_mask is None else _four(attn_mask), query, key.shape[2])
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return AttentionCall(query=query, key=key, scale=scale, causal=causal, mask=shown, bias=added)


def read_softmax(scores: Tensor, heads: int | None) -> AttentionCall:
    """The call whose scores are already there, as the input of a softmax over keys.

    Queries and keys are zeros of width 1: the scores are all bias.
    """
    if scores.ndim == 3:
        if heads is None:
            raise JomaError(
                f"A softmax over scores of shape {tuple(scores.shape)} does not tell its heads; "
                "give the attention module a num_heads."
            )
        scores = scores.view(-1, heads, *scores.shape[1:])
    batch, count, queries, keys = scores.shape
    lowest = max(torch.finfo(scores.dtype).min / 2, LOWEST_SCORE)
    return AttentionCall(
        query=scores.new_zeros(batch, count, queries, 1),
        key=scores.new_zeros(batch, count, keys, 1),
        scale=1.0,
        bias=scores.masked_fill(scores <= lowest, -torch.inf),
    )


def visible(
    mask: Any, query: Tensor, keys: int
) -> tuple[Bool[Tensor, "..."] | None, Float[Tensor, "..."] | None]:
    """Where a mask lets keys be seen, and what it adds to their scores."""
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor):
        if not hasattr(mask, "mask_mod"):
            raise JomaError(f"An attention mask of type {type(mask).__name__} cannot be read.")
        batch, heads = mask.shape[:2]
        size = (mask.mask_mod, batch, heads, query.shape[2], keys, query.device.type)
        return create_mask(*size), None
    if mask.ndim == 2:  # real tokens, of keys and (self-attention) of queries
        shown = mask[:, -keys:].bool()
        rows = shown[:, -query.shape[2] :]
        return rows[:, None, :, None] & shown[:, None, None], None
    if mask.ndim != 4:
        raise JomaError(f"An attention mask of shape {tuple(mask.shape)} cannot be read.")
    if mask.shape[-1] == 1:
        mask = mask.expand(*mask.shape[:-1], keys)
    mask = mask[..., :keys]
    return (mask, None) if mask.dtype == torch.bool else _split_additive(mask)


def dense(call: AttentionCall) -> Float[Tensor, "batch head query key"]:
    """The attention matrix of a small call, slow and obvious; `nan` where no key is seen."""
    groups = call.query.shape[1] // call.key.shape[1]
    key = call.key.repeat_interleave(groups, dim=1).double()
    scores = call.scale * call.query.double() @ key.mT
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask, -torch.inf)
    queries, keys = scores.shape[-2:]
    back = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)
    if call.causal:
        hidden = (back < 0) | (back >= (call.window or keys + queries))
        scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
    if call.cu_seqlens is not None:
        document = torch.searchsorted(call.cu_seqlens.cpu(), torch.arange(keys), right=True)
        apart = document[:, None] != document
        scores = scores.masked_fill(apart.to(scores.device), -torch.inf)
    if call.sinks is not None:
        sink = call.sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return scores.softmax(-1)


def _four(tensor: Tensor) -> Tensor:
    """With batch and head written out; more leading dimensions are one batch."""
    while tensor.ndim < 4:
        tensor = tensor[None]
    return tensor.flatten(0, tensor.ndim - 4) if tensor.ndim > 4 else tensor


def _borders(position_ids: Tensor, length: int) -> Tensor | None:
    starts = (position_ids.flatten() == 0).nonzero().flatten()
    if len(starts) < 2:
        return None
    return torch.cat([starts, starts.new_tensor([length])])


def _split_additive(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A mask of numbers as what it hides, or as what it adds if it does more than hide."""
    shown = mask > torch.finfo(mask.dtype).min / 2
    if not bool((mask.masked_fill(~shown, 0) != 0).any()):
        return shown, None
    return None, mask.masked_fill(~shown, -torch.inf)

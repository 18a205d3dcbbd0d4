"""`joma.tap`: show an attention that joma cannot see by itself."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.probes.base import AttentionCall
from joma.probes.functions import running


def tap(
    query: Float[Tensor, "batch head query width"],
    key: Float[Tensor, "batch kv_head key width"],
    *,
    causal: bool = False,
    cu_seqlens: Int[Tensor, " documents_plus_one"] | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Show one attention call of a custom kernel; does nothing while nobody observes.

    Put it next to the kernel, inside the attention module's forward, with the queries and keys
    that enter it. It returns nothing, keeps nothing and changes nothing; in a compiled region it
    is not there at all, and the observed forward is then a separate one.

    Args:
        query: As they enter the kernel, positions already encoded.
        key: Heads of `query` share them in consecutive groups.
        causal: Query `i` sees keys up to `i + keys - queries`.
        cu_seqlens: Borders of documents packed into one row (batch 1).
        scale: Factor on the scores; `width**-0.5` if left out.
        window: With `causal`, at most this many keys back, itself included.
        softcap: Bound on the scores.
    """
    if torch.compiler.is_compiling():
        return
    watch = running()
    if watch is not None:
        watch.show(
            AttentionCall(
                query=query.detach(),
                key=key.detach(),
                scale=query.shape[-1] ** -0.5 if scale is None else scale,
                causal=causal,
                window=window,
                cu_seqlens=cu_seqlens,
                softcap=softcap,
            )
        )

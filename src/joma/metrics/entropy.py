"""Attention entropy: how widely a head looks, exactly, without the attention matrix.

Low entropy is sparse attention. Figures 4, 6, 7 and 8 of the paper plot it against training time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.metrics import _sampled
from joma.metrics._attention import Method, Plan as Plan, plan as plan, statistics
from joma.probes.base import AbstractStreamProbe, AttentionCall, Need, Place, Sums
from joma.records.schema import Bound, Reading

ProbeMethod: TypeAlias = Literal["auto", "fused", "tiles", "sampled"]


def attention_entropy(
    query: Float[Tensor, "batch head query width"],
    key: Float[Tensor, "batch kv_head key width"],
    scale: float | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Tensor, "#batch #head #query key"] | None = None,
    bias: Float[Tensor, "#batch #head #query key"] | None = None,
    cu_seqlens: Int[Tensor, " documents_plus_one"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    method: Method = "auto",
) -> Float[Tensor, "batch head query"]:
    r"""Shannon entropy $-\sum_j p_j \ln p_j$ of each attention row, in nats.

    Exact on every path; a row costs what the attention kernel costs and the attention matrix is
    never there. With a learned sink (`sinks`), the sink is one more outcome. No gradient flows.

    Args:
        query: Queries as they enter the attention, positions already encoded.
        key: Keys. Heads of `query` share them in consecutive groups.
        scale: Factor on the scores; `width**-0.5` if left out.
        causal: Query `i` sees keys up to `i + keys - queries`.
        window: With `causal`, at most this many keys back, itself included.
        mask: True where a key may be seen.
        bias: Added to the scores (ALiBi, T5). -inf, or the lowest number of its dtype, hides a key.
        cu_seqlens: Borders of documents packed into one row; documents do not see each other.
        softcap: Scores become `softcap * tanh(scores / softcap)` before `bias` and `mask`.
        sinks: A learned logit per head that takes probability and returns nothing.
        method: `"fused"`, `"tiles"`, or the right one for the call; `plan` says which and why.

    Returns:
        One number per row, in float32 or float64. `nan` for a query that sees no key (padding):
        it is to be left out, not averaged in. A query that sees one key has entropy 0.

    Example:
        >>> same = torch.ones(1, 1, 4, 8)
        >>> attention_entropy(same, same, causal=True).exp().round()  # 1, 2, 3, 4 keys, all alike
        tensor([[[1., 2., 3., 4.]]])
    """
    call = AttentionCall(
        query=query,
        key=key,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        causal=causal,
        window=window,
        mask=mask,
        bias=bias,
        cu_seqlens=cu_seqlens,
        softcap=softcap,
        sinks=sinks,
    )
    return statistics(call, method).entropy


@dataclass(frozen=True, kw_only=True)
class AttentionEntropyProbe(AbstractStreamProbe):
    """Mean entropy per head, in nats and as a fraction of its ceiling, and its spread over rows.

    Query t of a causal model sees t + 1 keys, so its entropy is at most ln(t + 1) and a plain
    mean mostly measures sequence length. The fraction is a ratio of sums, not a mean of ratios:
    rows that see one key drop out of it, and it can be computed from any published mean in nats.
    """

    need: ClassVar = Need.ATTENTION
    method: ProbeMethod = "auto"
    """`"sampled"` looks at a few rows of each call, and its readings carry a 95 % interval."""
    rows: int = 16
    """Rows per call, if sampled."""
    seed: int = 0
    """Which rows, if sampled; global random state plays no part."""

    def observe(self, seen: AttentionCall) -> Sums:
        """Sums of one call per head: nats, their squares, rows and the ceiling of the nats."""
        if self.method == "sampled":
            generator = _sampled.generator_of(seen, self.seed)
            estimate = _sampled.estimate(seen, self.rows, generator)
            return estimate.sums() | _ceilings(estimate.outcomes, seen)
        found = statistics(seen, self.method)
        entropy = found.entropy.double().minimum(_ceiling(found.outcomes))
        entropy = entropy.masked_fill(found.outcomes == 0, 0.0)
        sums = {"nats": entropy.sum((0, 2)), "squares": entropy.square().sum((0, 2))}
        return sums | _ceilings(found.outcomes, seen)

    def readings(self, place: Place, sums: Sums) -> Iterator[Reading]:
        """`attention_entropy`, `attention_entropy_fraction` and `attention_entropy_spread`."""
        sums = {name: entry.cpu() for name, entry in sums.items()}
        rows, ceiling, nats = sums["rows"], sums["ceiling"], sums["nats"]
        spread = (sums["squares"] / rows - (nats / rows).square()).clamp(min=0.0).sqrt()
        error = None
        if "variance" in sums:
            error = _sampled.half_width(sums["variance"], sums["variance_squares"])
        for head in range(len(rows)):
            for metric, total, per in (
                ("attention_entropy", nats, rows),
                ("attention_entropy_fraction", nats, ceiling),
                ("attention_entropy_spread", spread, torch.ones_like(rows)),
            ):
                value, unit = float(total[head] / per[head]), float(per[head])
                more: dict[str, Any] = {"head": head}
                if math.isnan(value):
                    more["status"] = _reason(float(rows[head]), unit)
                elif error is not None and total is nats:
                    margin = float(error[head]) / unit
                    more |= {"lower": value - margin, "upper": value + margin, "bound": Bound.CI95}
                yield place.reading(metric, value, **more)


def _ceiling(outcomes: Int[Tensor, "#batch #head query"]) -> Float[Tensor, "#batch #head query"]:
    """Largest possible entropy of each row, in float64, so that no fraction exceeds 1."""
    return outcomes.clamp(min=1).double().log()


def _ceilings(
    outcomes: Int[Tensor, "#batch #head query"], call: AttentionCall
) -> dict[str, Tensor]:
    """Rows that see a key, and the sum of ln(outcomes), their largest possible entropy."""
    each = outcomes.expand(call.query.shape[:3])
    return {
        "rows": (each > 0).sum((0, 2)).double(),
        "ceiling": _ceiling(outcomes).expand_as(each).sum((0, 2)),
    }


def _reason(rows: float, unit: float) -> str:
    if rows == 0:
        return "no query sees a key"
    return "no query sees two keys" if unit == 0 else "non-finite attention scores"


PROBE = AttentionEntropyProbe()

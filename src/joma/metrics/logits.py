r"""The largest attention logit, and attention sinks: what an unstable run shows first.

Per row, the log-sum-exp that every fused kernel computes brackets the largest score,
$\mathrm{lse} - \ln n \le \max_j s_j \le \mathrm{lse}$, so most rows can be ruled out without
looking at their scores.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from jaxtyping import Float
from torch import Tensor

from joma.metrics import _parts, _tiles, _visible
from joma.metrics._attention import Method, binary_entropy, statistics
from joma.probes.base import AbstractStreamProbe, AttentionCall, Need, Place, Sums
from joma.records.schema import OK, Bound, Reading

FIRST_LOOK: Final = 16
"""Rows per head whose scores are looked at before others are ruled out."""
NON_FINITE: Final = "non-finite attention scores"
SINK_ONLY: Final = 1e-4
"""Mean mass off the sink below which rounding decides what the rest of attention looks like."""


def max_attention_logit(call: AttentionCall, method: Method = "auto") -> Float[Tensor, " head"]:
    """Largest score that enters the softmax, per head, over the batch and all visible pairs.

    Exact: rows are looked at in the order of their log-sum-exp, until none that is left can
    hold a larger score. Scores are those after soft cap and bias; a learned sink is not a key.

    Returns:
        One number per head: -inf if no query sees a key, `nan` if a visible score is not finite.
    """
    rows = statistics(call, method)
    if rows.top is not None:
        return _over_rows(rows.top)
    with _parts.exactly(call):
        return _searched(_visible.checked(call), rows.lse)


def logit_bracket(
    call: AttentionCall, method: Method = "auto"
) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    r"""Bounds of the largest score per head that cost nothing beside the entropy.

    A row's mean score, $\mathrm{lse} - H \ge \mathrm{lse} - \ln n$, is below its largest score,
    and its lse above. Rounding is included: an inner product of float32 vectors of width $d$
    errs by at most $d\,\epsilon\,|q||k|$, a sum of $n$ weights by $n\,\epsilon$ relatively.
    """
    rows = statistics(call, method)
    with _parts.exactly(call):
        room = rows.entropy if call.sinks is None else rows.outcomes.clamp(min=1).log()
        mean = (rows.lse - room).masked_fill(rows.outcomes == 0, -torch.inf)
        slack = _rounding(call, rows.lse.dtype)
        return _over_rows(mean) - slack, _over_rows(rows.lse) + slack


def sink_mass(call: AttentionCall, method: Method = "auto") -> Float[Tensor, "batch head query"]:
    """Probability that each row gives to the attention sink.

    The sink is the learned one, if the model has it; else the first key of the row's sequence:
    key 0, the first token after left padding, the first token of a packed document. A row whose
    window has left the first key behind gives it 0. `nan` for a row that sees no key.
    """
    rows = statistics(call, method)
    with _parts.exactly(call):
        if call.sinks is not None:
            mass = (call.sinks.to(rows.lse)[:, None] - rows.lse).sigmoid()
        else:
            mass = _first_key_mass(_visible.checked(call), rows.lse)
            mass = mass.masked_fill((rows.outcomes == 1) & (mass > 0), 1.0)  # without rounding
        return mass.masked_fill(rows.outcomes == 0, torch.nan)


def sink_free_entropy(
    entropy: Float[Tensor, "*rows"], mass: Float[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    r"""Entropy of the attention that does not go to the sink, renormalised.

    $(H + p_0 \ln p_0)/(1 - p_0) + \ln(1 - p_0)$, which is the chain rule $H = h(p_0) + (1 - p_0)
    H_{free}$ solved for the last factor. An error of `entropy` grows by $1/(1 - p_0)$; where all
    mass is on the sink the result is `nan`.
    """
    return ((entropy - binary_entropy(mass)).clamp(min=0.0) / (1 - mass)).masked_fill(
        mass >= 1, torch.nan
    )


@dataclass(frozen=True, kw_only=True)
class AttentionLogitProbe(AbstractStreamProbe):
    """Largest attention logit, sink mass and sink-free entropy of each head.

    Rows with a single outcome have no choice and are left out of the last two. The sink-free
    entropy is a mean over rows weighted by the mass they keep off the sink, a ratio of sums
    that stays well conditioned when single rows give everything to the sink.
    """

    need: ClassVar = Need.ATTENTION
    method: Method = "auto"
    exact: bool = True
    """False reads the certified bracket instead, which costs nothing beside the entropy; its
    value is the upper end, so that it never reports too little."""

    def observe(self, seen: AttentionCall) -> Sums:
        """Sums of one call per head; the entries named `max:` are combined by maximum."""
        rows, mass = statistics(seen, self.method), sink_mass(seen, self.method).double()
        chosen = (rows.outcomes > 1).expand_as(mass)
        rest = rows.entropy.double() - binary_entropy(mass)

        def total(values: Tensor) -> Tensor:
            return values.masked_fill(~chosen, 0.0).sum((0, 2))

        sums = {"choices": chosen.sum((0, 2)).double(), "sink": total(mass), "rest": total(rest)}
        if self.exact:
            return sums | {"max:logit": _storable(max_attention_logit(seen, self.method))}
        lower, upper = logit_bracket(seen, self.method)
        return sums | {"max:lower": _storable(lower), "max:logit": _storable(upper)}

    def readings(self, place: Place, sums: Sums) -> Iterator[Reading]:
        """`max_attention_logit`, `sink_mass` and `attention_entropy_sink_free` by head."""
        listed = {name: entry.tolist() for name, entry in sums.items()}
        for head in range(len(listed["choices"])):
            one = {name: entry[head] for name, entry in listed.items()}
            yield _logit(place, head, one["max:logit"], one.get("max:lower"))
            yield from _sinks(place, head, one["choices"], one["sink"], one["rest"])


def _sinks(place: Place, head: int, choices: float, sink: float, rest: float) -> Iterator[Reading]:
    elsewhere = choices - sink
    if choices == 0:
        reason = "no query has a choice"
    else:
        reason = NON_FINITE if math.isnan(sink + rest) else OK
    mass = sink / choices if reason == OK else math.nan
    yield place.reading("sink_mass", mass, head=head, status=reason)
    if reason == OK and elsewhere < SINK_ONLY * choices:
        reason = "all attention is on the sink"
    free = max(0.0, rest) / elsewhere if reason == OK else math.nan
    yield place.reading("attention_entropy_sink_free", free, head=head, status=reason)


def _logit(place: Place, head: int, value: float, lower: float | None) -> Reading:
    metric = "max_attention_logit"
    if not math.isfinite(value):
        reason = "no query sees a key" if value < 0 else NON_FINITE
        return place.reading(metric, math.nan, head=head, status=reason)
    if lower is None:
        return place.reading(metric, value, head=head)
    return place.reading(metric, value, head=head, lower=lower, upper=value, bound=Bound.CERTIFIED)


def _storable(largest: Float[Tensor, " head"]) -> Float[Tensor, " head"]:
    """float64, `nan` as +inf: a maximum over ranks does not promise to carry a `nan`."""
    return largest.double().nan_to_num(math.inf, math.inf, -math.inf)


def _over_rows(values: Float[Tensor, "batch head query"]) -> Float[Tensor, " head"]:
    by_head = values.transpose(0, 1).flatten(1)
    return torch.cat([by_head, by_head.new_full((len(by_head), 1), -torch.inf)], 1).amax(1)


def _rounding(call: AttentionCall, dtype: torch.dtype) -> Float[Tensor, " head"]:
    """What rounding can do to a score or a log-sum-exp of this call, at most."""
    heads, width = call.query.shape[1], call.query.shape[3]
    long, keys = (
        _over_rows(torch.linalg.vector_norm(side, dim=-1, dtype=dtype).nan_to_num(0.0, 0.0))
        for side in (call.query, call.key)
    )
    size = abs(call.scale) * long * keys.repeat_interleave(heads // call.key.shape[1])
    if call.bias is not None:
        size = size + call.bias.masked_fill(_visible.hides(call.bias), 0.0).abs().max()
    return torch.finfo(dtype).eps * ((width + 8) * size + call.key.shape[2] + 8)


def _searched(
    call: AttentionCall, lse: Float[Tensor, "batch head query"]
) -> Float[Tensor, " head"]:
    """Branch and bound: no score of a row exceeds its lse."""
    batch, heads, queries = lse.shape
    best = lse.new_full((heads,), -torch.inf)
    look = min(FIRST_LOOK, queries)
    for element in range(batch):
        bounds = lse[element]
        picked = _parts.pick(call, element, bounds.topk(look).indices)
        best = best.maximum(_tiles.largest_score(picked))
        left = (bounds > best[:, None]).sum(-1)
        few = (left > look) & (left < queries // 4)  # for more, the triangle of all is cheaper
        for chosen, all_rows in ((few, False), ((left > look) & ~few, True)):
            some = chosen.nonzero()[:, 0]
            if len(some):
                part = _parts.take(call, element, some.tolist())
                if not all_rows:
                    part = _parts.pick(part, 0, bounds[some].topk(int(left[some].max())).indices)
                best[some] = best[some].maximum(_tiles.largest_score(part))
    return best


def _first_key_mass(
    call: AttentionCall, lse: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch head query"]:
    batch, heads, queries = lse.shape
    kv_heads, keys = call.key.shape[1:3]
    if keys == 0:
        return torch.zeros_like(lse)
    first = _visible.first(call)
    # A sequence begins at a key whose own query sees nothing before it. Where a sliding
    # window begins, that does not hold. Keys without a query here (a cache) count as beginnings.
    own = first - (keys - queries)
    begins = (own < 0) | (first.gather(2, own.clamp(0, max(0, queries - 1))) == first)
    head = torch.arange(heads, device=lse.device)[:, None]
    mass = torch.empty_like(lse)
    for element in range(batch):
        one = _parts.cut(call, slice(element, element + 1), slice(0, heads))
        at = first[element if first.shape[0] > 1 else 0]  # [#head, query]
        for rows in _visible.row_blocks(call):
            here = at[:, rows]
            if bool((here == here[:, :1]).all()):  # as a rule: no need to copy one key many times
                here = here[:, :1]
            key = one.key[0, head // (heads // kv_heads), here].to(lse)
            score = call.scale * (one.query[0, :, rows].to(lse) * key).sum(-1)
            if call.softcap is not None:
                score = call.softcap * (score / call.softcap).tanh()
            if one.bias is not None:
                query = torch.arange(queries, device=lse.device)[rows]
                score += one.bias[0].expand(heads, queries, -1)[head, query, here]
            mass[element, :, rows] = (score - lse[element, :, rows]).exp().clamp(max=1.0)
    return mass.masked_fill(~begins, 0.0)


PROBE = AttentionLogitProbe()

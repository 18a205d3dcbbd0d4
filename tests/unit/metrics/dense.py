"""The slow, obvious twin: every statistic from the whole attention matrix, in float64."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.probes.base import AttentionCall, Place
from joma.probes.sums import combine


@dataclass(frozen=True)
class Dense:
    scores: Tensor
    """Scores of the keys, -inf where hidden."""
    weights: Tensor
    """Probabilities of the keys, and of the learned sink in the last column if there is one."""
    visible: Tensor

    @property
    def seen(self) -> Tensor:
        return self.visible.any(-1)

    @property
    def entropy(self) -> Tensor:
        rows = torch.special.entr(self.weights).sum(-1)
        return rows.masked_fill(~self.seen, math.nan)

    @property
    def largest(self) -> Tensor:
        return self.scores.amax((0, 2, 3))


def dense(call: AttentionCall) -> Dense:
    """What a call says, word for word."""
    heads, queries = call.query.shape[1:3]
    kv_heads, keys = call.key.shape[1:3]
    key = call.key.double().repeat_interleave(heads // kv_heads, 1)
    scores = call.scale * call.query.double() @ key.mT
    if call.softcap is not None:
        scores = call.softcap * (scores / call.softcap).tanh()
    visible = torch.ones_like(scores, dtype=torch.bool)
    at, stands = torch.arange(keys), (torch.arange(queries) + keys - queries)[:, None]
    if call.causal:
        visible &= at <= stands
    if call.window is not None:
        visible &= at > stands - call.window
    if call.cu_seqlens is not None:
        document = torch.searchsorted(call.cu_seqlens, at, right=True)
        visible &= document == document[:, None]
    if call.mask is not None:
        visible &= call.mask
    if call.bias is not None:
        visible &= call.bias > torch.finfo(call.bias.dtype).min / 2
        scores = scores + call.bias.double()
    scores = scores.masked_fill(~visible, -math.inf)
    full = scores
    if call.sinks is not None:
        sink = call.sinks.double()[:, None, None].expand(*scores.shape[:3], 1)
        full = torch.cat([scores, sink], -1)
    return Dense(scores, full.softmax(-1), visible)


def toy(
    *,
    batch=2,
    heads=4,
    kv_heads=4,
    queries=40,
    keys=40,
    width=16,
    sharpness=1.0,
    dtype=torch.float64,
    seed=0,
    **options,
) -> AttentionCall:
    """A call with Gaussian queries and keys."""
    generator = torch.Generator().manual_seed(seed)
    query = sharpness * torch.randn(
        batch, heads, queries, width, generator=generator, dtype=torch.float64
    )
    key = torch.randn(batch, kv_heads, keys, width, generator=generator, dtype=torch.float64)
    return AttentionCall(query=query.to(dtype), key=key.to(dtype), scale=width**-0.5, **options)


def random(*shape, seed=1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def left_padding(batch=2, keys=40, padded=7) -> Tensor:
    mask = torch.ones(batch, 1, 1, keys, dtype=torch.bool)
    mask[0, ..., :padded] = False
    return mask


TRIANGLE = torch.ones(40, 40, dtype=torch.bool).tril()

FUSED = {
    "plain": {},
    "causal": {"causal": True},
    "decoding with a cache": {"causal": True, "queries": 3, "keys": 40},
    "more queries than keys": {"causal": True, "queries": 40, "keys": 25},
    "cross attention": {"queries": 40, "keys": 13},
    "long": {"causal": True, "queries": 600, "keys": 600, "batch": 1},
    "long with a window": {
        "causal": True, "queries": 600, "keys": 600, "batch": 1, "window": 300
    },
    "window": {"causal": True, "window": 5},
    "window of one": {"causal": True, "window": 1},
    "left padding": {"causal": True, "mask": left_padding()},
    "left padding with the triangle": {"mask": left_padding() & TRIANGLE},
    "right padding": {"mask": left_padding().flip(-1)},
    "nothing visible": {"mask": torch.zeros(1, 1, 1, 40, dtype=torch.bool)},
    "a mask for each head": {"causal": True, "mask": random(2, 4, 40, 40) > 0},
    "packed": {"batch": 1, "cu_seqlens": torch.tensor([0, 11, 11, 30, 40])},
    "packed, causal, window": {
        "batch": 1, "causal": True, "window": 6, "cu_seqlens": torch.tensor([0, 11, 30, 40])
    },
    "grouped keys": {"causal": True, "kv_heads": 2},
    "one key head": {"causal": True, "kv_heads": 1, "mask": left_padding()},
    "sinks": {"causal": True, "sinks": random(4)},
    "sinks, padding": {"causal": True, "sinks": random(4), "mask": left_padding()},
    "a bias that only hides": {
        "bias": torch.zeros(1, 1, 40, 40).masked_fill(~TRIANGLE, -math.inf)
    },
    "a bias of the lowest number": {
        "bias": torch.zeros(1, 1, 40, 40).masked_fill(~TRIANGLE, torch.finfo(torch.float32).min)
    },
}  # fmt: skip
TILES = {
    "bias": {"causal": True, "bias": random(1, 4, 40, 40)},
    "a bias that also hides": {
        "bias": random(1, 4, 40, 40).masked_fill(~TRIANGLE, -math.inf)
    },
    "bias of the keys": {"bias": random(2, 1, 1, 40), "mask": left_padding()},
    "softcap": {"causal": True, "softcap": 0.7},
    "softcap, bias, sinks, window, groups": {
        "causal": True,
        "softcap": 2.0,
        "bias": random(1, 4, 1, 40),
        "sinks": random(4),
        "window": 9,
        "kv_heads": 2,
    },
    "long with a bias": {
        "causal": True, "queries": 600, "keys": 600, "batch": 1, "bias": random(1, 1, 600, 600)
    },
}  # fmt: skip
CASES = FUSED | TILES


def readings(probe, *calls):
    """What a probe says of some calls of one layer, by metric and head."""
    sums = probe.observe(calls[0])
    for call in calls[1:]:
        sums = combine(sums, probe.observe(call))
    return {(r.metric, r.head): r for r in probe.readings(Place(layer=0), sums)}

"""What torch offers on this machine, and whether our kernels are right on it. Takes seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from joma.metrics import _attention
from joma.metrics.entropy import attention_entropy
from joma.metrics.rank import stable_rank
from joma.probes.base import AttentionCall

UNTESTED: Final = "untested on GPU"
IMPLEMENTATIONS: Final = {
    "eager": "",
    "sdpa": "",
    "flex_attention": "",
    "flash_attention_2": f"{UNTESTED}: its arguments were read with a stand-in for the kernel",
}
"""Attention of transformers that is observed, with what was not tried of it."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One kernel beside a computation that does not know it."""

    kernel: str
    against: str
    error: float
    bar: float
    """Largest error that passes."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the bar; not if it is `nan`."""
        return self.error <= self.bar


@dataclass(frozen=True, kw_only=True)
class AttentionPath:
    """Which kernel an attention call takes, and why."""

    device: str
    call: str
    path: str
    why: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A place where torch can compute."""

    name: str
    description: str
    note: str = ""


def trials() -> list[Trial]:
    """Every kernel, tried now on a seeded input of its own."""
    return [
        _timed("stable rank", "a dense SVD in float64", 1e-3, _rank_error),
        _timed("attention entropy", "a softmax in float64", _attention.ROUNDING, _entropy_error),
    ]


def devices() -> list[Device]:
    """The CPU, and accelerators if torch finds any."""
    found = [Device(name="cpu", description=f"{torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        found += [
            Device(name=f"cuda:{i}", description=torch.cuda.get_device_name(i), note=UNTESTED)
            for i in range(torch.cuda.device_count())
        ]
    if torch.backends.mps.is_available():
        found.append(Device(name="mps", description="Apple GPU", note=UNTESTED))
    if torch.xpu.is_available():
        found.append(Device(name="xpu", description="Intel GPU", note=UNTESTED))
    return found


def paths() -> list[AttentionPath]:
    """The kernel that each kind of call takes here, and would take on a GPU."""
    query = torch.ones(1, 1, 2, 4)
    calls = {
        "causal, masked, windowed, packed": AttentionCall(
            query=query, key=query, scale=0.5, causal=True
        ),
        "additive bias (ALiBi, T5)": AttentionCall(
            query=query, key=query, scale=0.5, bias=torch.ones(1, 1, 2, 2)
        ),
        "soft cap (Gemma 2)": AttentionCall(query=query, key=query, scale=0.5, softcap=50.0),
    }
    plans = [("cpu", name, _attention.plan(call), "") for name, call in calls.items()]
    # A tensor without storage stands for one on a GPU: to the rules it is not on a CPU either.
    away = AttentionCall(query=query.to("meta"), key=query.to("meta"), scale=0.5, causal=True)
    plans.append(("cuda, mps, xpu", "every call", _attention.plan(away), UNTESTED))
    return [
        AttentionPath(device=device, call=call, path=plan.path, why=plan.why, note=note)
        for device, call, plan, note in plans
    ]


def _timed(kernel: str, against: str, bar: float, error: Callable[[], float]) -> Trial:
    start = time.perf_counter()
    found = error()
    seconds = time.perf_counter() - start
    return Trial(kernel=kernel, against=against, error=found, bar=bar, seconds=seconds)


def _rank_error() -> float:
    """Relative, of one matrix that takes the path by Lanczos; infinite if a bound is broken."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1024, 640, generator=generator)
    weight[0] *= 8  # as trained matrices have: a leading singular value that stands out
    values = torch.linalg.svdvals(weight.double())
    truth = float(values.square().sum() / values[0].square())
    found = stable_rank(weight)
    if not found.lower <= truth <= found.upper:
        return float("inf")
    return abs(found.value / truth - 1)


def _entropy_error() -> float:
    """In nats, the largest over all rows of a causal call."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 4, 256, 64, generator=generator)
    scores = 64**-0.5 * query.double() @ key.double().mT
    hidden = torch.ones(256, 256, dtype=torch.bool).triu(1)
    rows = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    truth = torch.special.entr(rows).sum(-1)
    return float((attention_entropy(query, key, causal=True) - truth).abs().max())

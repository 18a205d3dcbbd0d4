"""What is known of each row of an attention call, by the kernel that is right for the call.

`plan` chooses between two exact kernels, `_fused` and `_tiles`, and says why; `statistics` runs
it once however many probes ask.
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.metrics import _fused, _parts, _tiles, _visible
from joma.probes.base import AttentionCall

Path: TypeAlias = Literal["fused", "tiles"]
Method: TypeAlias = Literal["auto", "fused", "tiles"]


class Plan(NamedTuple):
    """Which kernel is right for a call, and why."""

    path: Path
    why: str


class Rule(NamedTuple):
    """One line of the table: when it holds, its plan is taken."""

    holds: Callable[[AttentionCall], bool]
    plan: Plan


def _no_fused_kernel(call: AttentionCall) -> bool:
    return call.query.device.type != "cpu" or not _fused.kernel_is_right()


RULES: Final = (
    Rule(
        lambda call: call.softcap is not None,
        Plan("tiles", "a soft cap bends the scores, so their mean is not linear in the keys"),
    ),
    Rule(
        lambda call: call.bias is not None,
        Plan("tiles", "the mean of an additive bias cannot be read off the attention output"),
    ),
    Rule(
        _no_fused_kernel,
        Plan("tiles", "no kernel that returns its log-sum-exp was tested on this device"),
    ),
    Rule(
        lambda call: True,
        Plan("fused", "scores are linear in the keys, so one run of the kernel gives both terms"),
    ),
)
"""The first rule that holds decides. A bias that only hides keys counts as a mask."""


ROUNDING: Final = 1e-5
"""Nats. Heads the identity would miss by more (scores beyond some 28 in float32) go to tiles."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is known of each row of a call: one number per batch element, head and query."""

    entropy: Float[Tensor, "batch head query"]
    """In nats, a learned sink counted as one more outcome; `nan` where no key is seen."""
    lse: Float[Tensor, "batch head query"]
    """Log-sum-exp of the scores of the keys, without a sink; -inf where no key is seen."""
    outcomes: Int[Tensor, "#batch #head query"]
    """Keys seen, plus one if there is a learned sink; 0 where no key is seen."""
    top: Float[Tensor, "batch head query"] | None
    """Largest score, where the kernel saw the scores (tiles); -inf where no key is seen."""


def plan(call: AttentionCall) -> Plan:
    """The kernel that is right for a call, with the reason."""
    return _plan(_visible.checked(call))


def _plan(call: AttentionCall) -> Plan:
    return next(rule.plan for rule in RULES if rule.holds(call))


def statistics(call: AttentionCall, method: Method = "auto") -> Rows:
    """What is known of each row; asked again for the same call, the same object.

    Several probes look at one call: the last answer is kept for as long as its call lives. No
    gradient flows, autocast is off inside, and half precision is computed in float32.
    """
    kept = _LAST.get(method)
    if kept is not None and kept[0]() is call:
        return kept[1]
    with _parts.exactly(call):
        rows = fresh(_visible.checked(call), method)
    _LAST[method] = (weakref.ref(call, functools.partial(_forget, method)), rows)
    return rows


_LAST: dict[Method, tuple[weakref.ref[AttentionCall], Rows]] = {}


def _forget(method: Method, dead: weakref.ref[AttentionCall]) -> None:
    kept = _LAST.get(method)
    if kept is not None and kept[0] is dead:
        _LAST.pop(method, None)


def binary_entropy(p: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Entropy in nats of a coin that falls heads with probability `p`."""
    both: Tensor = torch.special.entr(torch.stack([p, 1 - p]))
    return both.sum(0)


def fresh(call: AttentionCall, method: Method) -> Rows:
    """What is known of each row of a call that was checked, computed anew."""
    right = _plan(call)
    if method == "fused" and right.path == "tiles":
        raise ValueError(f"The fused path is not right here: {right.why}. Use method='tiles'.")
    keys = _visible.count(call)
    seen = keys > 0
    top: Tensor | None = None
    if method == "tiles" or right.path == "tiles":
        entropy, lse, top = _tiles.tiles(call)
    else:
        entropy, lse = _fused.fused(call)
        _mend(call, entropy, lse, seen)
    # Rounding can leave [0, ln n]; a step back into it only makes the error smaller.
    entropy = entropy.clamp(min=0.0).minimum(keys.clamp(min=1).to(entropy).log())
    if call.sinks is not None:
        # Chain rule: the choice between the sink and the keys, then the choice among the keys.
        mass = (call.sinks.to(lse)[:, None] - lse).sigmoid()
        entropy = binary_entropy(mass) + (1 - mass) * entropy
    return Rows(
        entropy=entropy.masked_fill(~seen, torch.nan),
        lse=lse.masked_fill(~seen, -torch.inf),
        outcomes=_visible.outcomes(call, keys),
        top=None if top is None else top.masked_fill(~seen, -torch.inf),
    )


def _mend(
    call: AttentionCall,
    entropy: Float[Tensor, "batch head query"],
    lse: Float[Tensor, "batch head query"],
    seen: Bool[Tensor, "#batch #head query"],
) -> None:
    """Compute by tiles, in place, the heads where the identity is not good enough.

    They are those with a `nan`, which may come from a hidden key (tiles write over what is
    hidden), and those whose scores are so large that their cancellation would show.
    """
    if not entropy.numel():
        return
    limit = ROUNDING / (3 * torch.finfo(lse.dtype).eps)  # errors measured: 2.6 to 3.8 eps * lse
    size = (lse.abs() + entropy.abs()).masked_fill(~seen, 0.0)
    poor = ~(size.amax(-1) <= limit)  # [batch, head]; true for nan
    for element in poor.any(1).nonzero()[:, 0].tolist():
        heads = poor[element].nonzero()[:, 0].tolist()
        part = _parts.take(call, element, heads)
        entropy[element, heads], lse[element, heads] = (
            found[0] for found in _tiles.tiles(part)[:2]
        )

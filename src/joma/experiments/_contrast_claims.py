"""What is decided about dip and bounce from the records of `contrast`, with its statistics."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from joma._core.typing import Array
from joma.experiments._language import ENTROPY
from joma.experiments.base import Curve, Evidence, Finding, Verdict

ARMS = (
    *("relu", "identity", "no_mlp", "frozen_mlp", "frozen_embeddings"),
    *("no_norm", "rms_norm", "no_residual", "sgd"),
)
LOW, HIGH = "lr1e-4", "lr1e-3"
DEPTH, BOUNCE = 0.2, 0.08  # nats; the bounce is fig6's
LEARNT = 0.5  # nats, ours
PART = "quarter"  # of the steps, over which ends are averaged
HYPOTHESES = (
    "unnormalised attention",
    "free logits",
    "one query",
    "values are embeddings",
    "fixed embeddings",
    "orthonormal embeddings",
    "no normalisation",
    "gradient descent",
    "trained MLP",
)


class Dip(NamedTuple):
    """Where the smoothed entropy is lowest. All `nan` if the run left the numbers."""

    low: float
    step: float
    depth: float
    """From the start, unsmoothed, down to the lowest."""
    bounce: float
    """From the lowest up to the mean of the last quarter, of what lies after the lowest."""

    @property
    def bounces(self) -> bool:
        """Whether it is deep enough and comes back far enough."""
        return self.depth >= DEPTH and self.bounce >= BOUNCE


def named(arm: str, rate: str) -> str:
    """An arm at a learning rate, as its runs are called."""
    return f"{arm}_{rate}"


def hypothesis(what: str) -> str:
    """The metric that is 1 where a hypothesis is met."""
    return "meets_" + what.lower().replace(" ", "_")


def dip(curve: Curve) -> Dip:
    """The lowest point of a moving mean of three evaluations, and what came after."""
    if not np.all(np.isfinite(curve.values)):
        return Dip(*[np.nan] * 4)
    smooth = smoothed(curve.values)
    i = int(smooth.argmin())
    low = float(smooth[i])
    after = late(Curve(curve.steps[i:], smooth[i:]))  # a fall to the end has no more than its end
    return Dip(low, float(curve.steps[i]), float(curve.values[0]) - low, after - low)


def smoothed(values: Array) -> Array:
    """Moving mean of three evaluations; first and last are left as they are."""
    inner = (values[:-2] + values[1:-1] + values[2:]) / 3
    return np.concatenate([values[:1], inner, values[-1:]])


def late(curve: Curve) -> float:
    """Mean over the last quarter of the steps."""
    return float(curve.values[curve.steps >= 0.75 * curve.steps[-1]].mean())


def dips(evidence: Evidence, arm: str, rate: str) -> list[Dip]:
    """One per seed."""
    curves = evidence.part(layer=0).curves(ENTROPY, arm=named(arm, rate))
    return [dip(curve) for curve in curves]


def nonlinear_bounces(evidence: Evidence) -> Finding:
    return _only_relu(evidence, ("identity", "no_mlp"))


def joint_dynamics(evidence: Evidence) -> Finding:
    return _only_relu(evidence, ("no_mlp", "frozen_mlp"))


def _only_relu(evidence: Evidence, controls: Sequence[str]) -> Finding:
    rates = _bouncing_rates(evidence)
    shared = [
        named(arm, rate)
        for rate in rates
        for arm in controls
        if np.mean([d.bounces for d in dips(evidence, arm, rate)]) >= 0.5
    ]
    numbers = {
        f"bounce, {arm.replace('_', ' ')} {rate}": [d.bounce for d in dips(evidence, arm, rate)]
        for rate in (LOW, HIGH)
        for arm in ("relu", *controls)
    }
    note = f"ReLU bounces at: {', '.join(rates) or 'none'}; controls: {', '.join(shared) or 'none'}"
    verdict = Verdict.of(effect=bool(rates), control=bool(shared))
    return Finding.over_seeds(verdict, numbers, f"{note}.")


def deeper(evidence: Evidence) -> Finding:
    return _paired(evidence, 0, "lower by")


def earlier(evidence: Evidence) -> Finding:
    return _paired(evidence, 1, "earlier by")


def _paired(evidence: Evidence, field: int, name: str) -> Finding:
    """By how much each seed's dip with a trained MLP lies below, or before, the others'."""
    gains = {
        (other, rate): np.array([d[field] for d in dips(evidence, other, rate)])
        - [d[field] for d in dips(evidence, "relu", rate)]
        for rate in (LOW, HIGH)
        for other in ("no_mlp", "frozen_mlp")
    }
    ahead = {
        other: all(bool(np.all(gain > 0)) for (o, _), gain in gains.items() if o == other)
        for other in ("no_mlp", "frozen_mlp")
    }
    numbers = {
        f"{name}, than {other.replace('_', ' ')}, {rate}": gain
        for (other, rate), gain in gains.items()
    }
    verdict = Verdict.of(effect=ahead["no_mlp"], control=not ahead["frozen_mlp"])
    return Finding.over_seeds(verdict, numbers, "Paired: seeds share their initial weights.")


def needed(evidence: Evidence) -> Finding:
    rates = _bouncing_rates(evidence)
    still, learning = [], []
    numbers = {}
    for rate in (LOW, HIGH):
        full = _loss(evidence, "relu", rate)
        for arm in ARMS:
            share = [float(d.bounces) for d in dips(evidence, arm, rate)]
            numbers[f"bounces, {arm.replace('_', ' ')} {rate}"] = share
            if rate in rates and not any(share):
                still.append(named(arm, rate))
                if bool(np.all(_loss(evidence, arm, rate) - full <= LEARNT)):
                    learning.append(named(arm, rate))
    note = (
        f"Do not bounce where ReLU does: {', '.join(still) or 'none'};"
        f" of these learn: {', '.join(learning) or 'none'}."
    )
    return Finding.over_seeds(Verdict.of(effect=bool(still), control=not learning), numbers, note)


def hypotheses(evidence: Evidence) -> Finding:
    met = np.array(
        [
            [evidence.curves(hypothesis(what), arm=named(arm, rate))[0].values[0] for arm in ARMS]
            for rate in (LOW, HIGH)
            for what in HYPOTHESES
        ]
    ).reshape(2, len(HYPOTHESES), len(ARMS))
    lacking = (1 - met).sum(1).ravel()
    numbers = {f"arms with {what}": [n] for what, n in zip(HYPOTHESES, met[0].sum(1), strict=True)}
    numbers |= {"fewest lacking": [lacking.min()], "lacking in Figure 6's": [lacking[0]]}
    note = f"Of {len(HYPOTHESES)} hypotheses; {len(ARMS)} arms."
    verdict = Verdict.of(effect=bool(np.all(lacking >= 1)), control=False)
    return Finding.over_seeds(verdict, numbers, note)


def _bouncing_rates(evidence: Evidence) -> list[str]:
    """Learning rates at which ReLU bounces in every seed."""
    return [r for r in (LOW, HIGH) if all(d.bounces for d in dips(evidence, "relu", r))]


def _loss(evidence: Evidence, arm: str, rate: str) -> Array:
    return np.array([late(c) for c in evidence.curves("loss", arm=named(arm, rate))])

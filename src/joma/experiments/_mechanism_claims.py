"""What is decided about the mechanism from the records of `mechanism`, with its rules."""

from collections.abc import Mapping, Sequence

import numpy as np

from joma._core.typing import Array
from joma.experiments._mechanism_model import FROZEN, LADDER, RUNGS, twin
from joma.experiments.base import Evidence, Finding, Verdict

MEAN, SUM = "mean", "summed"
"""A word's logit: over the queries that see it, or over all words as queries, each once."""
SPEARMAN, PARTIAL, CORRELATION = "spearman", "partial_spearman", "correlation"
SLOPE, ERROR = "slope", "relative_error"
VALUE_NORM, FREQUENCY = "value_norm_spearman", "frequency_spearman"
LOGIT_CHANGE, ENERGY_CHANGE = "logit_change", "energy_change"

MARGIN = 0.1  # ours
EXACT, NEAR = 0.99, 0.1  # of the last rung, where only the steps of SGD disagree
STRONG = 0.9  # ours


def metric(reading: str, what: str) -> str:
    """Name of the metric that compares the changes of a logit with those of something else."""
    return f"{reading}_logit_{what}"


def operates(evidence: Evidence) -> Finding:
    found = last(evidence, MEAN, SPEARMAN, "full")
    controls = controls_of(evidence, MEAN, "full")
    rest = {
        "given value norm and frequency": last(evidence, MEAN, PARTIAL, "full"),
        "correlation": last(evidence, MEAN, CORRELATION, "full"),
        "slope": last(evidence, MEAN, SLOPE, "full"),
        "rank correlation, sum over queries": last(evidence, SUM, SPEARMAN, "full"),
    }
    verdict = Verdict.of(
        effect=bool(np.all(found > 0)),
        control=not np.median(found) >= largest(controls) + MARGIN,
    )
    return Finding.over_seeds(verdict, {"rank correlation": found} | controls | rest)


def exact(evidence: Evidence) -> Finding:
    found, slope, error = (
        last(evidence, MEAN, what, RUNGS[-1]) for what in (SPEARMAN, SLOPE, ERROR)
    )
    frequency = np.abs(last(evidence, MEAN, FREQUENCY, RUNGS[-1]))
    verdict = Verdict.of(
        effect=bool(np.all(found >= EXACT) and np.all(np.abs(slope - 1) <= NEAR)),
        control=bool(np.any(frequency >= EXACT)),
    )
    numbers = {"rank correlation": found, "slope": slope, "relative error": error}
    return Finding.over_seeds(verdict, numbers | {"frequency": frequency})


def appears(evidence: Evidence) -> Finding:
    return _appears(evidence, MEAN)


def appears_in_sum(evidence: Evidence) -> Finding:
    return _appears(evidence, SUM)


def _appears(evidence: Evidence, reading: str) -> Finding:
    found = {rung: last(evidence, reading, SPEARMAN, rung) for rung in RUNGS}
    rung = first_strong([float(np.median(found[rung])) for rung in RUNGS])
    numbers: dict[str, Array] = {LADDER[rung]: values for rung, values in found.items()}
    if rung is None:
        return Finding.over_seeds(Verdict.FAILS, numbers, "It does not appear at all.")
    controls = controls_of(evidence, reading, rung)
    verdict = Verdict.of(
        effect=rung != RUNGS[-1],
        control=not np.median(found[rung]) >= largest(controls) + MARGIN,
    )
    note = f"It appears with: {LADDER[rung].removeprefix('+ ')}."
    return Finding.over_seeds(verdict, numbers | controls, note)


def first_strong(medians: Sequence[float]) -> str | None:
    """The first rung from which on all are strong; none if the last is not."""
    strong = [m >= STRONG for m in medians]
    if not strong[-1]:
        return None
    return RUNGS[len(strong) - next((i for i, s in enumerate(strong[::-1]) if not s), len(strong))]


def controls_of(evidence: Evidence, reading: str, rung: str) -> dict[str, Array]:
    """Rank correlations without their sign; a control that does not change is left out."""
    found = {
        "value norm": last(evidence, reading, VALUE_NORM, rung),
        "frequency": last(evidence, reading, FREQUENCY, rung),
    }
    if rung in FROZEN:
        found["frozen MLP"] = last(evidence, reading, SPEARMAN, twin(rung))
    return {name: np.abs(values) for name, values in found.items() if np.all(np.isfinite(values))}


def largest(controls: Mapping[str, Array]) -> float:
    """Of all controls and seeds."""
    return max(float(values.max()) for values in controls.values())


def last(evidence: Evidence, reading: str, what: str, arm: str) -> Array:
    """The value at the last step, of every seed."""
    curves = evidence.curves(metric(reading, what), arm=arm)
    return np.array([curve.values[-1] for curve in curves])

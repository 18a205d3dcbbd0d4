"""Labels, detectors and scores of `joma bench diagnosis`, fixed before its runs were trained.

A run has *failed* if its final loss (mean of the last three measurements) lies above the best
final loss of a smaller or equal learning rate in the same configuration by more than half of what
that best gains over word frequencies alone. A run that a larger learning rate would beat is slow,
not failed. Whatever has not failed must not be alarmed.

A second label was added after the first had been looked at, on our runs: *impaired*, above that
best by more than 3 %. Runs of one layer at 1e-2, the very case a monitor should flag, end 4 to 6 %
above the best: they learn late what others learn early, and have not failed by the first label.
Three per cent is the distance within which the authors' runs were called good before.

Every signal is read in the same four ways, from one of a few first steps on: for good, until twice
that step, or at that step alone. The calibration half chooses the way, the window and the
threshold: most failures found without a false alarm, then the earliest median alarm. The held-out
half is scored once with what was chosen. (Windows that end were added when the authors' curves,
but none of our runs, had been looked at: the change of the loss from minibatch 1,000 to 2,000
separates their failed runs, and a detector that must listen for ever cannot say so.)

The lead is the step of the loss-only alarm minus that of the detector, run by run, with the
threshold of the loss moved on the same runs until it has as many false alarms as the detector. A
failure that was missed counts as alarmed at the end of its run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array

Reading: TypeAlias = Callable[[Float[Array, " times"], Float[Array, "times layers"]], Array]


@dataclass(frozen=True, eq=False)
class Run:
    """One run as the detectors see it. Signals are turned so that larger is worse."""

    name: str
    configuration: str
    held_out: bool
    rate: float
    steps: Float[Array, " times"]
    loss: Float[Array, " times"]
    """On the probe batch, for the label."""
    unigram: float
    signals: dict[str, Float[Array, "times layers"]]


class Detector(NamedTuple):
    """A signal, the way to read it, and from when on which score is an alarm."""

    signal: str
    reading: str
    first: float
    last: float
    threshold: float


class Score(NamedTuple):
    """How a detector does on some runs."""

    failed: int
    found: int
    others: int
    false_alarms: int
    step: float
    """Median step of the alarm over failed runs; a missed one counts with its last step."""
    lead: float
    """Median lead over loss-only at equal false alarms; `nan` if nothing failed."""
    loss_found: int
    """Failures that loss-only finds at as many false alarms."""


def _level(steps: Array, values: Array) -> Array:
    return values


def _since_start(steps: Array, values: Array) -> Array:
    return values - values[:1]


def _over_doubling(steps: Array, values: Array) -> Array:
    """Against the last measurement at or before half of the step; 0 at step 0."""
    half = np.searchsorted(steps, steps / 2, side="right") - 1
    return np.asarray(values - values[half])


def _over_lowest(steps: Array, values: Array) -> Array:
    return np.asarray(values - np.minimum.accumulate(values))


READINGS: Final[dict[str, Reading]] = {
    "level": _level,
    "change since step 0": _since_start,
    "change over the last doubling of steps": _over_doubling,
    "rise above its lowest": _over_lowest,
}


def failed(runs: Sequence[Run]) -> set[str]:
    """Names of the runs that lost more than half of what their best rival learns."""
    return _above(runs, lambda best, run: best + 0.5 * max(0.0, run.unigram - best))


def impaired(runs: Sequence[Run]) -> set[str]:
    """Names of the runs that end more than 3 % above their best rival."""
    return _above(runs, lambda best, run: 1.03 * best)


def _above(runs: Sequence[Run], limit: Callable[[float, Run], float]) -> set[str]:
    """Runs whose final loss is above a limit that depends on the best of their rivals.

    Rivals have the same configuration and a smaller or equal learning rate.
    """
    final = {run.name: float(np.mean(run.loss[-3:])) for run in runs}
    found = set()
    for run in runs:
        rivals = [r for r in runs if r.configuration == run.configuration and r.rate <= run.rate]
        best = float(np.fmin.reduce([final[r.name] for r in rivals]))
        if not final[run.name] <= limit(best, run):  # also for a nan
            found.add(run.name)
    return found


def alarm(run: Run, detector: Detector) -> float:
    """Step of the first alarm; `nan` if there is none."""
    return _first(run.steps, scores(run, detector) > detector.threshold)


def scores(run: Run, detector: Detector) -> Float[Array, " times"]:
    """The worst layer, step by step; minus infinity while the detector does not listen."""
    values = READINGS[detector.reading](run.steps, run.signals[detector.signal])
    worst = np.where(np.isnan(values), np.inf, values).max(-1)  # a nan is as bad as it gets
    listens = (run.steps >= detector.first) & (run.steps <= detector.last)
    return np.where(listens, worst, -np.inf)


def _first(steps: Float[Array, " times"], holds: Array) -> float:
    return float(steps[np.argmax(holds)]) if holds.any() else float("nan")


def threshold(
    runs: Iterable[Run], bad: set[str], detector: Detector, false_alarms: int = 0
) -> Detector:
    """The detector at the lowest threshold with at most so many false alarms."""
    good = sorted((scores(r, detector).max() for r in runs if r.name not in bad), reverse=True)
    return detector._replace(
        threshold=float(good[false_alarms]) if false_alarms < len(good) else -np.inf
    )


def calibrated(
    runs: Sequence[Run], bad: set[str], signal: str, firsts: Sequence[float]
) -> Detector:
    """The way to read a signal that finds most failures without a false alarm, then earliest."""
    candidates = [
        threshold(runs, bad, Detector(signal, reading, first, last, 0.0))
        for reading in READINGS
        for first in firsts
        for last in (np.inf, 2 * first, first)
    ]

    def merit(detector: Detector) -> tuple[int, float]:
        steps = [alarm(run, detector) for run in runs if run.name in bad]
        return sum(not np.isnan(s) for s in steps), -_median(runs, bad, steps)

    return max(candidates, key=merit)


def score(runs: Sequence[Run], bad: set[str], alarms: dict[str, float], loss: Detector) -> Score:
    """Of a detector, given the step of its alarm (or `nan`) for each run."""
    false_alarms = sum(not np.isnan(alarms[r.name]) for r in runs if r.name not in bad)
    rival = threshold(runs, bad, loss, false_alarms)
    lost = [r for r in runs if r.name in bad]
    ours = [alarms[r.name] for r in lost]
    theirs = [alarm(r, rival) for r in lost]
    leads = [end_or(r, b) - end_or(r, a) for r, a, b in zip(lost, ours, theirs, strict=True)]
    return Score(
        failed=len(lost),
        found=sum(not np.isnan(step) for step in ours),
        others=len(runs) - len(lost),
        false_alarms=false_alarms,
        step=_median(runs, bad, ours),
        lead=float(np.median(leads)) if leads else float("nan"),
        loss_found=sum(not np.isnan(step) for step in theirs),
    )


def _median(runs: Sequence[Run], bad: set[str], steps: Sequence[float]) -> float:
    lost = [run for run in runs if run.name in bad]
    capped = [end_or(run, step) for run, step in zip(lost, steps, strict=True)]
    return float(np.median(capped)) if capped else float("nan")


def end_or(run: Run, step: float) -> float:
    return float(run.steps[-1]) if np.isnan(step) else step

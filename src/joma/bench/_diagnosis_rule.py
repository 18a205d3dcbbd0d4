"""The thresholds of the diagnosis, chosen on the calibration half of our runs.

The choice is that of every other detector: most failures found without a false alarm, then the
earliest median alarm; among equals, the thresholds that speak last.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from joma.analysis.calibration import CALIBRATION, Calibration
from joma.analysis.series import Series
from joma.bench._diagnosis_read import rule_alarms
from joma.bench._diagnosis_score import Run, end_or

SHARES: Final = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
LOGITS: Final = (10.0, 20.0, 30.0, 50.0, 100.0, 200.0)
GAINS: Final = (0.02, 0.05, 0.1, 0.15, 0.2)
GRACES: Final = (1.0, 1.5, 2.0, 3.0)
NEVER: Final = (0.0, np.inf)
"""A share and a logit that no layer passes."""


class Choice(NamedTuple):
    """Thresholds, and how they do on the calibration half."""

    limits: Calibration
    found: int
    false_alarms: int
    step: float


def chosen(runs: Sequence[Run], bad: set[str], observed: dict[str, Series]) -> Choice:
    """The best thresholds of the grid above."""
    mine = [observed[run.name] for run in runs]
    candidates = []
    for gain, grace in product(GAINS, GRACES):
        base = replace(CALIBRATION, gain=gain, grace=grace)
        narrow = {
            share: rule_alarms(mine, replace(base, share=share, logit=NEVER[1])) for share in SHARES
        }
        large = {
            logit: rule_alarms(mine, replace(base, share=NEVER[0], logit=logit)) for logit in LOGITS
        }
        for share, logit in product(SHARES, LOGITS):
            # An alarm of the rule is the first of its two: they do not know of each other.
            alarms = {
                r.name: float(np.fmin(narrow[share][r.name], large[logit][r.name])) for r in runs
            }
            candidates.append(_choice(runs, bad, alarms, replace(base, share=share, logit=logit)))
    return max(candidates, key=_merit)


def _choice(
    runs: Sequence[Run], bad: set[str], alarms: dict[str, float], limits: Calibration
) -> Choice:
    lost = [r for r in runs if r.name in bad]
    return Choice(
        limits,
        sum(not np.isnan(alarms[r.name]) for r in lost),
        sum(not np.isnan(alarms[r.name]) for r in runs if r.name not in bad),
        float(np.median([end_or(r, alarms[r.name]) for r in lost])),
    )


def _merit(choice: Choice) -> tuple[float, ...]:
    limits = choice.limits
    last = (-limits.share, limits.logit, limits.grace, -limits.gain)
    return (-choice.false_alarms, choice.found, -choice.step, *last)

"""What is drawn of Theorem 1: the stress table row by row, halving, and softmax attention."""

import numpy as np

from joma.experiments import _charges
from joma.experiments._figure import curve, dot, line, range_over
from joma.experiments._stress_table import CONDITIONS
from joma.experiments._thm1_claims import (
    CORRELATION,
    DRIFT,
    HALVING,
    NEAR,
    SLOPE,
)
from joma.experiments.base import Evidence
from joma.records.schema import Kind
from joma.report.panels import Dot, Panel, Reference

MEASURED, REFERENCE, LAW = "measured", f"reference, and {NEAR:.0%} around it", "law"
_DRIFT = "relative drift |z - estimate| / |z - z(0)|"


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """The whole table in two columns; below it the same as ratios, halving, and softmax."""
    rows = _table(evidence)
    half = (len(rows) + 1) // 2
    return (
        _table_panel("Stress table of Theorem 1, first half (seed 0)", rows[:half]),
        _table_panel("Stress table of Theorem 1, second half (seed 0)", rows[half:]),
        _ratio_panel(rows),
        _halving_panel(evidence),
        _softmax_panel(evidence, SLOPE, "slope of the logits on the estimate"),
        _softmax_panel(evidence, CORRELATION, "correlation of the increments"),
    )


def _table(evidence: Evidence) -> list[tuple[Dot, ...]]:
    """Measured drift, its reference and what a law predicts, of every row and horizon."""
    found = []
    for row in (row for condition in CONDITIONS for row in condition.rows):
        measured = evidence.curve(DRIFT, arm=row.arm, seed=0, kind=Kind.MEASURED)
        for horizon, drift in row.reference.items():
            several = f", time {horizon:g}" if len(row.reference) > 1 else ""
            name = row.arm.replace("_", " ") + several
            dots = [dot(name, [measured.at(horizon)], series=MEASURED)]
            if not np.isnan(drift):
                around = {"low": (1 - NEAR) * drift, "high": (1 + NEAR) * drift}
                dots.append(Dot(label=name, value=drift, series=REFERENCE, hollow=True, **around))
            if row.law is not None:
                law = evidence.curve(DRIFT, arm=row.arm, seed=0, kind=Kind.PREDICTED)
                dots.append(dot(name, [law.at(horizon)], series=LAW, hollow=True))
            found.append(tuple(dots))
    return found


def _table_panel(title: str, rows: list[tuple[Dot, ...]]) -> Panel:
    order = [MEASURED, REFERENCE, LAW]  # the same colours in both halves
    dots = sorted((d for row in rows for d in row), key=lambda d: order.index(d.series))
    return Panel(title=title, value_label=_DRIFT, dots=tuple(dots), log_value=True)


def _ratio_panel(rows: list[tuple[Dot, ...]]) -> Panel:
    """The table's distance from its references, too small to be seen on its own axis."""
    by_series = [{d.series: d.value for d in row} for row in rows]
    pairs = np.array(
        [(v[REFERENCE], v[MEASURED] / v[REFERENCE]) for v in by_series if REFERENCE in v]
    )
    laws = np.array([(v[MEASURED], v[MEASURED] / v[LAW]) for v in by_series if LAW in v])
    return Panel(
        title="The same rows as ratios, seed 0",
        value_label="measured / reference, or / law",
        time_label=f"{_DRIFT}, reference or measured",
        log_time=True,
        lines=(
            curve(f"reference, {len(pairs)} rows", *pairs.T, points=True),
            curve(f"law, {len(laws)} rows", *laws.T, dashed=True, points=True),
        ),
        references=(Reference(label=f"{NEAR:.0%} around 1", low=1 - NEAR, high=1 + NEAR),),
    )


def _halving_panel(evidence: Evidence) -> Panel:
    def ratio(label: str, metric: str, arm: str, *, control: bool = False) -> Dot:
        coarse, fine = (
            np.array([c.values[-1] for c in evidence.curves(metric, arm=f"{arm}_{i}")])
            for i in range(2)
        )
        return dot(label, coarse / fine, hollow=control)

    names = {metric: metric.removesuffix("_drift").replace("_", " ") for metric in _charges.METRICS}
    return Panel(
        title=f"Rate halved; {range_over(evidence)}",
        value_label="drift / drift at half the rate",
        dots=(
            ratio("exp attention, SGD", DRIFT, "exp_bar"),
            ratio("linear attention, SGD", DRIFT, "linear_bar"),
            *(ratio(f"{n}, SGD", m, "transformer_sgd") for m, n in names.items()),
            *(ratio(f"{n}, Adam", m, "transformer_adam", control=True) for m, n in names.items()),
        ),
        references=(
            Reference(label=f"{HALVING[0]} to {HALVING[1]}", low=HALVING[0], high=HALVING[1]),
        ),
    )


def _softmax_panel(evidence: Evidence, metric: str, label: str) -> Panel:
    arms = (("softmax", "Eqn. 18"), ("softmax_path", "path integral"))
    return Panel(
        title=f"Softmax attention; {range_over(evidence)}",
        value_label=label,
        time_label="time: sum of learning rates",
        lines=tuple(
            line(evidence, metric, arm, label=name, kind=Kind.MEASURED, dashed=arm != "softmax")
            for arm, name in arms
        ),
    )

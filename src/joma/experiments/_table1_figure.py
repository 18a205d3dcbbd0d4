"""Table 1 as a figure: every cell with its controls, and scores over training."""

import numpy as np

from joma.experiments._table1_claims import S0, S1, arms
from joma.experiments._table1_data import TABLE
from joma.experiments.base import Curve, Evidence
from joma.report.panels import Dot, Line, Panel

MOST_LINES = 4


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Level s = 1 by number of classes, level s = 0, sampled data, and s = 1 over iterations."""
    cells = arms(evidence, sampled=False)
    shown = []
    for classes in sorted({cell.classes for cell in TABLE if cell.arm in cells}):
        group = [c.arm for c in TABLE if c.arm in cells and c.classes == classes]
        shown.append(_dots(evidence, S1, group, f"Table 1, s = 1, {classes} classes"))
    shown.append(_dots(evidence, S0, cells, "Table 1, s = 0"))
    sampled = arms(evidence, sampled=True)
    shown += [_dots(evidence, m, sampled, f"Sampled HBLT, s = {m[-1]}, held out") for m in (S1, S0)]
    return (*shown, _over_time(evidence, cells[:MOST_LINES]))


def _dots(evidence: Evidence, metric: str, cells: list[str], title: str) -> Panel:
    dots = []
    for cell in cells:
        name = cell.replace("_", " ")
        ends = [c.values[-1] for c in evidence.curves(metric, arm=cell)]
        dots.append(_dot(f"{name}, trained", ends))
        for control in ("untrained", "noise"):
            values = [c.values[0] for c in evidence.curves(metric, arm=f"{cell}_{control}")]
            dots.append(_dot(f"{name}, {control}", values, hollow=True))
        for row in TABLE:
            if row.arm == cell:
                value = row.s0 if metric == S0 else row.s1
                dots.append(_dot(f"{name}, printed", [value], hollow=True))
    return Panel(
        title=f"{title}: median and range over seeds",
        value_label="mean best correlation with a latent",
        dots=tuple(dots),
    )


def _dot(label: str, values: list[float], *, hollow: bool = False) -> Dot:
    return Dot(
        label=label,
        value=float(np.median(values)),
        low=float(min(values)),
        high=float(max(values)),
        hollow=hollow,
    )


def _over_time(evidence: Evidence, cells: list[str]) -> Panel:
    return Panel(
        title="Table 1, s = 1, over training: median and range over seeds",
        value_label="mean best correlation with a latent",
        time_label="iteration",
        lines=tuple(_line(cell, evidence.curves(S1, arm=cell)) for cell in cells),
    )


def _line(cell: str, curves: list[Curve]) -> Line:
    values = np.array([c.values for c in curves])
    return Line(
        label=cell.replace("_", " "),
        x=curves[0].steps,
        y=np.median(values, 0),
        low=values.min(0),
        high=values.max(0),
    )

"""The figure of an experiment: its own if it has one, else every metric, arm by arm."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from joma._core.typing import Array
from joma.experiments.base import Evidence, Experiment
from joma.records.schema import Kind
from joma.report.panels import Dot, Line, Panel

UNITS = {"attention_entropy": "nats", "caption_entropy": "nats"}
MOST_LINES = 8
"""Arms in one panel; more are split over several."""
MOST_DOTS = 36


def panels(experiment: Experiment[Any], evidence: Evidence) -> tuple[Panel, ...]:
    """What to draw of these records."""
    if experiment.figure is not None:
        own: tuple[Panel, ...] = experiment.figure(evidence)
        return own
    found = [p for metric in _metrics(evidence.table) for p in _of_metric(evidence, metric)]
    return tuple(sorted(found, key=lambda panel: not panel.lines))  # curves first, then dots


def range_over(evidence: Evidence, what: str = "seed") -> str:
    """What bands and bars stand for, to be said in a title."""
    count = len(evidence.seeds)
    return f"median and range over {count} {what}s" if count > 1 else f"one {what}"


def line(
    evidence: Evidence,
    metric: str,
    arm: str,
    *,
    label: str | None = None,
    kind: Kind | None = None,
    dashed: bool = False,
) -> Line:
    """Median and range over seeds of one metric of one arm, at the steps that all seeds have."""
    curves = evidence.curves(metric, arm=arm, kind=kind)
    steps = min((c.steps for c in curves), key=len)
    values = np.array([c.values[: len(steps)] for c in curves])
    return Line(
        label=label or arm.replace("_", " "),
        x=steps,
        y=np.median(values, 0),
        low=values.min(0),
        high=values.max(0),
        dashed=dashed,
    )


def curve(label: str, x: Array, y: Array, *, dashed: bool = False, points: bool = False) -> Line:
    """A line without a range."""
    return Line(label=label, x=x, y=y, low=y, high=y, dashed=dashed, points=points)


def dot(
    label: str, values: Sequence[float] | Array, *, series: str = "", hollow: bool = False
) -> Dot:
    """Median and range of one number per seed."""
    found = np.asarray(values, dtype=float)
    low, middle, high = (float(f(found)) for f in (np.min, np.median, np.max))
    return Dot(label=label, value=middle, low=low, high=high, series=series, hollow=hollow)


def _of_metric(evidence: Evidence, metric: str) -> list[Panel]:
    name = metric.replace("_", " ")
    unit = f"{name} ({UNITS[metric]})" if metric in UNITS else name
    lines, dots = [], []
    for arm, kind in _arms(evidence.table, metric):
        other = kind is not Kind.MEASURED
        label = arm.replace("_", " ") + (f" ({kind.value})" if other else "")
        seen = line(evidence, metric, arm, label=label, kind=kind, dashed=other)
        if len(seen.x) > 1:
            lines.append(seen)
        else:
            low, middle, high = (float(v[0]) for v in (seen.low, seen.y, seen.high))
            dots.append(Dot(label=label, value=middle, low=low, high=high, hollow=other))
    made = [
        Panel(
            title=f"{name}: {range_over(evidence)}",
            value_label=unit,
            time_label="step or time",
            lines=tuple(lines[i : i + MOST_LINES]),
            log_time=_is_long([line.x for line in lines]),
        )
        for i in range(0, len(lines), MOST_LINES)
    ]
    wide = _spans_decades([np.array([d.low, d.high]) for d in dots])
    positive = all(d.low > 0 for d in dots)
    made += [
        Panel(
            title=f"{name}: {range_over(evidence)}",
            value_label=unit,
            dots=tuple(dots[i : i + MOST_DOTS]),
            log_value=wide and positive,
        )
        for i in range(0, len(dots), MOST_DOTS)
    ]
    return made


def _metrics(table: pa.Table) -> list[str]:
    return list(dict.fromkeys(table["metric"].to_pylist()))


def _arms(table: pa.Table, metric: str) -> list[tuple[str, Kind]]:
    rows = zip(*(table[c].to_pylist() for c in ("metric", "run", "kind")), strict=True)
    found = ((r.split("/", 1)[1].rsplit("/", 1)[0], Kind(k)) for m, r, k in rows if m == metric)
    return list(dict.fromkeys(found))


def _is_long(times: list[Any]) -> bool:
    """Whether a logarithmic time axis shows more: early and late times are decades apart."""
    return _spans_decades(times) and max(float(t.max()) for t in times) >= 10


def _spans_decades(arrays: list[Any]) -> bool:
    """Whether positive values reach over more than three decades."""
    values = np.concatenate([np.asarray(a, dtype=float) for a in arrays]) if arrays else np.ones(1)
    values = np.abs(values[np.isfinite(values) & (values != 0)])
    return bool(len(values)) and math.log10(values.max() / values.min()) > 3

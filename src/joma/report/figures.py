"""Panels of any records: each layer's curves with bounds, and runs side by side."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array
from joma.analysis.curves import LARGEST
from joma.records.schema import Bound, Kind
from joma.report.courses import Bounded, Course, label
from joma.report.panels import Line, Panel
from joma.report.thin import kept

ENTROPIES: Final = ("attention_entropy", "attention_entropy_sink_free")
LOGIT: Final = "max_attention_logit"
RANK: Final = "stable_rank"
LOSS: Final = "loss"
FIRST: Final = (*ENTROPIES, LOGIT, RANK, LOSS)
"""What a reader wants to see first."""
NAMES: Final = {
    "attention_entropy": "attention entropy (nats)",
    "attention_entropy_sink_free": "attention entropy without sinks (nats)",
    LOGIT: "largest attention logit",
    RANK: "stable rank of the lower MLP matrix",
}
MOST_PANELS: Final = 16
"""Metrics of a run that are drawn; the table has them all."""
MOST_LINES: Final = 8
"""Runs in one panel of a comparison."""


def name(metric: str) -> str:
    """A metric in words, with its unit."""
    return NAMES.get(metric, metric.replace("_", " "))


def headline(words: str) -> str:
    """Words as the beginning of a title."""
    return words[:1].upper() + words[1:]


def curve_panels(course: Course, *, theory: bool, most: int) -> tuple[Panel, ...]:
    """One panel per metric of a run, one line per layer; predictions only where asked for."""
    shown = (Kind.MEASURED, Kind.CONTROL, *((Kind.PREDICTED,) if theory else ()))
    metrics = sorted(course.metrics(), key=lambda m: FIRST.index(m) if m in FIRST else len(FIRST))
    found = (_panel(m, course.of(m, *shown), most) for m in metrics)
    return tuple(p for p in found if p is not None)[:MOST_PANELS]


def comparison(courses: Sequence[Course], most: int) -> tuple[Panel, ...]:
    """Entropy, logit, stable rank and loss of several runs, each run one line over its layers."""
    panels = []
    # Those with the most to show come first, so that a run keeps its colour from panel to panel.
    ordered = sorted(courses, key=lambda c: -len({*FIRST} & {*c.metrics()}))
    for metric in FIRST:
        lines = [x for c in ordered if (x := _over_layers(c, metric, most)) is not None]
        if len(lines) > 1:
            panels.append(_compared(metric, lines[:MOST_LINES], len(lines)))
    return tuple(panels)


def is_long(times: Iterable[Float[Array, " times"]]) -> bool:
    """Whether a logarithmic time axis shows more: early and late steps are decades apart."""
    every = np.concatenate([*times, np.array([math.nan])])
    later = every[every > 0]
    if not len(later):
        return False
    return bool(later.max() >= 10 and later.max() > 1000 * later.min())


def _panel(metric: str, found: Sequence[Bounded], most: int) -> Panel | None:
    if not any(np.isfinite(b.curve.values).any() for b in found):
        return None
    curves = [b.curve for b in found]
    layered = any(c.layer is not None for c in curves)
    over = "; the largest of its heads" if metric in LARGEST else "; heads averaged"
    bounds = {b.bound for b in found} - {Bound.NONE.value}
    band = f"; bands: {', '.join(sorted(bounds))} bounds" if bounds else ""
    return Panel(
        title=headline(name(metric)) + (f", by layer{over}{band}" if layered else band),
        value_label=name(metric),
        time_label="step",
        lines=tuple(_line(label(b.curve, curves), b, most) for b in found),
        log_time=is_long(c.steps for c in curves),
        log_value=metric == LOGIT and _decades(*(c.values for c in curves)),
    )


def _line(words: str, found: Bounded, most: int) -> Line:
    curve, keep = found.curve, kept(found.curve.values, most)
    return Line(
        label=words,
        x=curve.steps[keep],
        y=curve.values[keep],
        low=found.low[keep],
        high=found.high[keep],
        dashed=curve.kind != Kind.MEASURED,
    )


def _over_layers(course: Course, metric: str, most: int) -> Line | None:
    """A run as one line: the mean of its layers, or the largest, with their range around it."""
    found = [b.curve for b in course.of(metric, Kind.MEASURED)]
    if not found:
        return None
    steps = np.unique(np.concatenate([c.steps for c in found]))
    values = np.full((len(found), len(steps)), math.nan)
    for i, curve in enumerate(found):
        values[i, np.searchsorted(steps, curve.steps)] = curve.values
    there = ~np.isnan(values).all(0)
    if not there.any():
        return None
    steps, values = steps[there], values[:, there]
    middle = np.nanmax(values, 0) if metric in LARGEST else np.nanmean(values, 0)
    keep = kept(middle, most)
    low, high = np.nanmin(values, 0), np.nanmax(values, 0)
    return Line(label=course.name, x=steps[keep], y=middle[keep], low=low[keep], high=high[keep])


def _compared(metric: str, lines: Sequence[Line], there: int) -> Panel:
    summary = "largest of the layers" if metric in LARGEST else "mean of the layers"
    band = "" if metric == LOSS else f"; {summary}, band over them"
    more = f"; {len(lines)} of {there} runs" if there > len(lines) else ""
    logarithmic = metric == LOGIT and _decades(*(x.y for x in lines))
    if logarithmic:  # a band that reaches down to a logit near 0 would fill the panel
        lines = [replace(x, low=x.y, high=x.y) for x in lines]
        band = f"; {summary}"
    return Panel(
        title=f"{headline(name(metric))}{band}{more}",
        value_label=name(metric),
        time_label="step",
        lines=tuple(lines),
        log_time=is_long(x.x for x in lines),
        log_value=logarithmic,
    )


def _decades(*values: Float[Array, " _"]) -> bool:
    """Whether a logarithmic axis shows more, although it has no place for a value of 0."""
    every = np.concatenate(values)
    every = every[np.isfinite(every)]
    positive = every[every > 0]
    few = len(every) - len(positive) <= 0.1 * len(every)
    return bool(len(positive)) and few and bool(positive.max() > 100 * positive.min())

"""A run at one glance: the loss, and below it layer x step maps on the same time axis."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from joma._core.typing import Array
from joma.records.schema import Kind
from joma.report.courses import MAP, Course, label
from joma.report.figures import ENTROPIES, LOGIT, LOSS, RANK, curve_panels, headline, is_long, name
from joma.report.panels import HeatMap, Panel

RULE: Final = (
    "A map with more steps shows, for each stretch of equally many, the lowest entropy and stable "
    "rank and the largest logit."
)
SNAPSHOT_RULE: Final = (
    "Of attention maps the first, a middle and the last step are shown, for the first, a middle "
    "and the last layer."
)

LONGEST: Final = 256
"""Positions of a map that are drawn."""


def timeline(course: Course, *, most: int, columns: int) -> tuple[Panel, ...]:
    """Loss and heat maps of a run; without layers, or a second step, there are no maps."""
    entropy = ENTROPIES[1] if course.of(ENTROPIES[1], Kind.MEASURED) else ENTROPIES[0]
    found = (_map(course, m, columns) for m in (entropy, LOGIT, RANK))
    maps = [panel for panel in found if panel is not None]
    if not maps:
        return ()
    drawn = Course(course.run, course.stage, tuple(course.of(LOSS, Kind.MEASURED)))
    return (*curve_panels(drawn, theory=False, most=most), *maps)


def snapshots(table: pa.Table, course: Course) -> tuple[Panel, ...]:
    """Mean attention maps of a run, where records have them."""
    rows = table.filter(pc.equal(table["metric"].cast(pa.string()), MAP))
    rows = rows.filter(pc.equal(rows["run"].cast(pa.string()), course.run))
    if not rows.num_rows:
        return ()
    layers = _some(pc.unique(rows["layer"]).drop_null().to_numpy(zero_copy_only=False))
    steps = _some(pc.unique(rows["step"]).to_numpy())
    panels = []
    for layer in layers:
        of_layer = rows.filter(pc.equal(rows["layer"], int(layer)))
        for step in steps:
            found = of_layer.filter(pc.equal(of_layer["step"], float(step)))
            if found.num_rows:
                panels.append(_snapshot(found, int(layer), float(step)))
    return tuple(panels)


def _map(course: Course, metric: str, columns: int) -> Panel | None:
    curves = [b.curve for b in course.of(metric, Kind.MEASURED) if b.curve.layer is not None]
    steps = np.unique(np.concatenate([c.steps for c in curves])) if curves else np.zeros(0)
    if len(steps) < 2:
        return None
    values = np.full((len(curves), len(steps)), math.nan)
    for i, curve in enumerate(curves):
        values[i, np.searchsorted(steps, curve.steps)] = curve.values
    if not np.isfinite(values).any():
        return None
    # One logit of 10^4 would leave a single colour for all others.
    logarithmic = metric == LOGIT and np.nanmax(values) > 100
    if logarithmic:
        values = np.log10(np.where(np.isfinite(values) & (values > 0), values, math.nan))
    steps, values = _fewer(steps, values, columns, np.nanmax if metric == LOGIT else np.nanmin)
    words = f"log10 of the {name(metric)}" if logarithmic else name(metric)
    heat = HeatMap(
        rows=tuple(label(c, curves) for c in curves),
        columns=tuple(f"{s:g}" for s in steps),
        values=values,
        row_label="layer",
        column_label="step",
        times=steps,
        printed=False,
    )
    return Panel(title=headline(words), value_label=words, heat=heat, log_time=is_long([steps]))


def _fewer(
    steps: Float[Array, " times"],
    values: Float[Array, "layers times"],
    columns: int,
    extreme: Callable[..., Any],
) -> tuple[Float[Array, " columns"], Float[Array, "layers columns"]]:
    if len(steps) <= columns:
        return steps, values
    parts = np.array_split(np.arange(len(steps)), columns)
    kept = []
    for part in parts:
        here = values[:, part]
        empty = np.asarray(np.isnan(here).all(axis=1, keepdims=True))
        filled = np.where(empty, 0.0, here)
        kept.append(np.where(empty[:, 0], math.nan, extreme(filled, axis=1)))
    return steps[[part[0] for part in parts]], np.stack(kept, 1)


def _some(values: Array) -> Array:
    """The first, a middle and the last."""
    ordered = np.unique(values)
    found: Array = ordered[np.unique([0, len(ordered) // 2, len(ordered) - 1])]
    return found


def _snapshot(rows: pa.Table, layer: int, step: float) -> Panel:
    places = [_pair(site) for site in rows["site"].to_pylist()]
    known = [(p, v) for p, v in zip(places, rows["value"].to_pylist(), strict=True) if p]
    size = 1 + max((max(p) for p, _ in known), default=0)
    values = np.full((size, size), math.nan)
    for (query, key), value in known:
        values[query, key] = value
    numbers = tuple(str(i) for i in range(size))
    heat = HeatMap(
        rows=numbers,
        columns=numbers,
        values=values,
        row_label="query",
        column_label="key",
        printed=False,
    )
    title = f"Layer {layer}, step {step:g}: mean attention of each query to each key"
    return Panel(title=title, value_label="attention", heat=heat)


def _pair(site: str | None) -> tuple[int, int] | None:
    """Query and key of a site `q03.k01`."""
    query, _, key = (site or "").partition(".")
    if not (query[:1] == "q" and key[:1] == "k" and query[1:].isdecimal() and key[1:].isdecimal()):
        return None
    pair = int(query[1:]), int(key[1:])
    return pair if max(pair) < LONGEST else None

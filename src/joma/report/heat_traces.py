"""Heat maps as figures of plotly.js: layers over steps, queries over keys, tables of numbers."""

import math
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from joma._core.typing import Array
from joma.report.drawing import Figure, numbers, stretch, text, time_axis
from joma.report.panels import HeatMap, Panel


def heat_figure(panel: Panel) -> Figure:
    """A panel with a heat map, as a figure."""
    heat = panel.heat
    assert heat is not None
    layout: Figure = {
        "xaxis": {**_columns_axis(heat), "title": {"text": text(heat.column_label)}},
        "yaxis": {**rows_axis(heat), "title": {"text": text(heat.row_label)}},
        "annotations": list(_group_names(heat)),
        "shapes": [
            {
                "type": "rect",
                "x0": c - 0.48,
                "x1": c + 0.48,
                "y0": r - 0.46,
                "y1": r + 0.46,
                "line": {"width": 2, "color": "#D55E00"},
            }
            for r, c in heat.outlined
        ],
        "meta": stretch([panel]),
    }
    if heat.times is not None:
        layout["xaxis"] = time_axis(panel, heat.column_label)
    return {"data": [heat_trace(panel, heat)], "layout": layout}


def heat_trace(panel: Panel, heat: HeatMap) -> Figure:
    """The map alone, without axes."""
    low, high = heat.span or (None, None)
    size = len(heat.columns)
    trace: Figure = {
        "type": "heatmap",
        "z": [numbers(row) for row in heat.values],
        "x": _edges(heat.times, panel.log_time) if heat.times is not None else [*range(size)],
        "y": [*range(len(heat.rows))],
        "zmin": None if low is None else float(low),
        "zmax": None if high is None else float(high),
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "title": {"text": ""}, "outlinewidth": 0},
        "hoverongaps": False,
        # The page puts them together as the words of each cell: written out, they would be long.
        "meta": {
            "rows": [text(f"{heat.row_label} {r}".strip()) for r in heat.rows],
            "columns": [text(f"{heat.column_label} {c}".strip()) for c in heat.columns],
        },
    }
    if heat.printed and heat.values.size <= 400:
        trace["texttemplate"] = "%{z:.2f}"
    return trace


def _edges(times: Array, logarithmic: bool) -> list[float | int | None]:
    """Where the columns of a map meet: half way between their times, as the axis shows them."""
    shown = np.log1p(times) if logarithmic else np.asarray(times, float)
    middle = (shown[1:] + shown[:-1]) / 2
    last = shown[-1] + (shown[-1] - middle[-1]) if len(middle) else shown[-1] + 1
    edges = np.concatenate([shown[:1], middle, [last]])
    return numbers(np.expm1(edges) if logarithmic else edges)


def _columns_axis(heat: HeatMap) -> Figure:
    every = max(1, math.ceil(len(heat.columns) / (12 if not heat.printed else 60)))
    at = [*range(0, len(heat.columns), every)]
    return {"tickvals": at, "ticktext": [text(heat.columns[i]) for i in at], "automargin": True}


def rows_axis(heat: HeatMap) -> Figure:
    """The axis that names the rows."""
    every = max(1, math.ceil(len(heat.rows) / (12 if not heat.printed else 60)))
    at = [*range(0, len(heat.rows), every)]
    shown = [text(heat.rows[i]) for i in at]
    # Layers stand as in a drawing of the model, the input below; tables read from the top.
    ends = [-0.5, len(heat.rows) - 0.5]
    return {
        "tickvals": at,
        "ticktext": shown,
        "range": ends if heat.times is not None else ends[::-1],
        "automargin": True,
    }


def _group_names(heat: HeatMap) -> Iterator[Figure]:
    start = 0
    for words, members in groupby(heat.groups):
        width = len(list(members))
        place = {"x": start + (width - 1) / 2, "y": 1, "yref": "paper", "yanchor": "bottom"}
        yield {**place, "text": text(words), "showarrow": False}
        start += width

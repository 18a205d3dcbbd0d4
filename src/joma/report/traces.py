"""Panels as figures of plotly.js: plain data, in which every text is only text.

Colours are numbers here. The page gives them a meaning, one in the light and one in the dark.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from joma.report.drawing import Figure, number, numbers, stretch, text, time_axis, value_axis
from joma.report.heat_traces import heat_figure, heat_trace, rows_axis
from joma.report.panels import Dot, Line, Panel, Reference

GREY: Final = -1
"""The number of the colour for references."""
_DASHES: Final = ("solid", "dash", "dashdot", "dot")
_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x")
_COLOURS: Final = 7  # of the page's palette; more lines than dashes x colours take a scale instead
_LEGEND: Final = 12  # lines; of more, only those under the pointer are named


def figure(panel: Panel) -> Figure:
    """One panel as a figure."""
    made = heat_figure(panel) if panel.heat else _flat_figure(panel)
    made["layout"]["height"] = _height(panel)
    return made


def stacked(panels: Sequence[Panel]) -> Figure:
    """Panels of one run above each other, on one time axis."""
    heights = [_share(panel) for panel in panels]
    data, annotations, axes = [], [], {}
    top, gap = 1.0, 34 / (sum(heights) + 34 * len(heights))
    for i, (panel, height) in enumerate(zip(panels, heights, strict=True)):
        share = height / (sum(heights) + 34 * len(heights))
        bottom = top - gap - share
        axis = "y" if i == 0 else f"y{i + 1}"
        data += [{**t, "yaxis": axis} for t in _placed(panel, bottom + share / 2, share)]
        axes[f"yaxis{axis[1:]}"] = {
            "domain": [max(0.0, bottom), top - gap],
            **(rows_axis(panel.heat) if panel.heat else value_axis(panel)),
        }
        place = {"xref": "paper", "yref": "paper", "x": 0, "y": top - gap, "yanchor": "bottom"}
        annotations.append({**place, "text": text(panel.title), "showarrow": False})
        top = bottom
    last = f"y{len(panels)}" if len(panels) > 1 else "y"
    layout = {
        "xaxis": {**time_axis(panels[-1], "step"), "anchor": last},
        **axes,
        "annotations": annotations,
        "showlegend": False,
        "meta": stretch(panels),
        "height": int(sum(heights) + 34 * len(heights) + 90),
    }
    return {"data": data, "layout": layout}


def _placed(panel: Panel, middle: float, share: float) -> Iterator[Figure]:
    if panel.heat is None:
        yield from _flat_traces(panel)
    else:
        trace = heat_trace(panel, panel.heat)
        bar = {**trace["colorbar"], "y": middle, "len": share, "lenmode": "fraction"}
        yield {**trace, "colorbar": bar}


def _flat_figure(panel: Panel) -> Figure:
    traces = list(_flat_traces(panel) if panel.lines else _dot_traces(panel))
    many = sum(bool(t.get("showlegend", True)) for t in traces) > _LEGEND
    layout: Figure = {"showlegend": not many and bool(panel.lines or _series(panel))}
    if panel.lines:
        layout |= {"xaxis": time_axis(panel, panel.time_label), "yaxis": value_axis(panel)}
        layout["meta"] = stretch([panel])
    else:
        rows = list(dict.fromkeys(d.label for d in panel.dots))
        axis = {"tickvals": [*range(len(rows))], "ticktext": [text(r) for r in rows]}
        layout["yaxis"] = {**axis, "range": [len(rows) - 0.4, -0.6], "automargin": True}
        layout["xaxis"] = {
            "title": {"text": text(panel.value_label)},
            "type": "log" if panel.log_value else "linear",
        }
    layout["shapes"] = [s for r in panel.references if (s := _band_shape(r, panel)) is not None]
    return {"data": traces, "layout": layout}


def _flat_traces(panel: Panel) -> Iterator[Figure]:
    ordered = len(panel.lines) > _COLOURS * len(_DASHES) or len(panel.lines) > _LEGEND
    for i, line in enumerate(panel.lines):
        colour = {"colour": i, "of": len(panel.lines), "ordered": ordered}
        if not (np.array_equal(line.low, line.y, True) and np.array_equal(line.high, line.y, True)):
            yield _band(line, colour)
        yield _line(line, i, colour)
    ends = [line for line in panel.lines if len(line.x)]
    for reference in panel.references:
        if ends and reference.high is None:
            yield _rule(reference, ends)


def _line(line: Line, index: int, colour: Figure) -> Figure:
    dash = _DASHES[index // _COLOURS % len(_DASHES)] if not colour["ordered"] else "solid"
    return {
        "type": "scatter",
        "mode": "markers" if line.points else "lines",
        "x": numbers(line.x),
        "y": numbers(line.y),
        "name": text(line.label),
        "line": {"dash": "dash" if line.dashed and dash == "solid" else dash, "width": 1.8},
        "marker": {"symbol": _SYMBOLS[index % len(_SYMBOLS)] + "-open" * line.dashed, "size": 7},
        "meta": colour,
    }


def _band(line: Line, colour: Figure) -> Figure:
    there = np.isfinite(line.low) & np.isfinite(line.high)
    x, low, high = line.x[there], line.low[there], line.high[there]
    return {
        "type": "scatter",
        "x": numbers(np.concatenate([x, x[::-1]])),
        "y": numbers(np.concatenate([high, low[::-1]])),
        "fill": "toself",
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {**colour, "band": True},
    }


def _rule(reference: Reference, lines: Iterable[Line]) -> Figure:
    every = list(lines)
    span = np.concatenate([x.x if reference.axis == "value" else x.y for x in every])
    span = span[np.isfinite(span)]
    ends = [float(span.min()), float(span.max())] if len(span) else [0.0, 1.0]
    at = [float(reference.low)] * 2
    x, y = (ends, at) if reference.axis == "value" else (at, ends)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "name": text(reference.label),
        "line": {"dash": "dot", "width": 1.5},
        "meta": {"colour": GREY},
    }


def _band_shape(reference: Reference, panel: Panel) -> Figure | None:
    """A reference with two ends, or any beside dots, as a shape across the panel."""
    upright = reference.axis == "time" or not panel.lines
    if reference.high is None and panel.lines:
        return None
    low, high = float(reference.low), float(reference.high or reference.low)
    ends = {"x0": low, "x1": high} if upright else {"y0": low, "y1": high}
    rest = {"y0": 0, "y1": 1, "yref": "paper"} if upright else {"x0": 0, "x1": 1, "xref": "paper"}
    return {
        "type": "rect",
        **ends,
        **rest,
        "layer": "below",
        "meta": "reference",
        "label": {"text": text(reference.label), "textposition": "top left"},
    }


def _dot_traces(panel: Panel) -> Iterator[Figure]:
    rows = list(dict.fromkeys(d.label for d in panel.dots))
    series = _series(panel) or [""]
    for i, one in enumerate(series):
        dots = [d for d in panel.dots if d.series == one]
        shift = 0.2 * (i - (len(series) - 1) / 2)
        yield {
            "type": "scatter",
            "mode": "markers",
            "x": [number(float(d.value)) for d in dots],
            "y": [rows.index(d.label) + shift for d in dots],
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [number(float(d.high) - float(d.value)) for d in dots],
                "arrayminus": [number(float(d.value) - float(d.low)) for d in dots],
            },
            "name": text(one),
            "showlegend": bool(one),
            "marker": {"symbol": [_symbol(d, i) for d in dots], "size": 9},
            "meta": {"colour": i, "of": len(series), "ordered": False},
        }


def _symbol(dot: Dot, index: int) -> str:
    return _SYMBOLS[index % len(_SYMBOLS)] + ("-open" if dot.hollow else "")


def _series(panel: Panel) -> list[str]:
    return list(dict.fromkeys(d.series for d in panel.dots if d.series))


def _share(panel: Panel) -> int:
    return 150 if panel.heat is None else min(220, max(56, 16 * len(panel.heat.rows)))


def _height(panel: Panel) -> int:
    if panel.heat is not None:
        return 150 + min(700, max(120, 22 * len(panel.heat.rows)))
    if panel.lines:
        return 380
    return 130 + 24 * max(3, len({d.label for d in panel.dots}))

"""The figures of a page, each with its numbers as a table for those who read or hear it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from joma.report.drawing import Figure
from joma.report.html import Html, joined, table, tag
from joma.report.panels import HeatMap, Line, Panel
from joma.report.traces import figure, stacked

_COLUMNS = 12  # of a heat map's table


@dataclass
class Gallery:
    """Figures in the order of the page, for its script."""

    figures: list[Figure] = field(default_factory=list)

    def hang(self, panels: Iterable[Panel]) -> Html:
        """The places of figures in the page, one per panel."""
        return joined(self._place(p.title, figure(p), numbers(p)) for p in panels)

    def hang_stacked(self, title: str, panels: Sequence[Panel]) -> Html:
        """The place of one figure, of panels that share their time axis."""
        curves = [numbers(p) for p in panels if p.heat is None]
        note = tag("p", "The maps show the curves that follow, whose numbers are with them.")
        return self._place(title, stacked(panels), joined([*curves, note]))

    def _place(self, title: str, made: Figure, told: Html) -> Html:
        plot = tag(
            "div",
            class_="plot",
            data_figure=str(len(self.figures)),
            role="group",
            aria_label=f"{title}. The numbers are in the table that follows.",
            style=f"height:{made['layout']['height']}px",
        )
        self.figures.append(made)
        more = tag("details", tag("summary", "Numbers of this figure"), told, class_="numbers")
        return tag("figure", tag("figcaption", title), plot, more)


def numbers(panel: Panel) -> Html:
    """What a panel shows, as a table."""
    if panel.heat is not None:
        return _cells(panel.title, panel.heat)
    if panel.dots:
        rows = [
            (f"{d.label} {d.series}".strip(), *_short(d.value, d.low, d.high)) for d in panel.dots
        ]
        return table(panel.title, ("what", "value", "low", "high"), rows)
    head = ("curve", "first", "lowest", "at", "highest", "at", "last")
    return table(panel.title, head, [_summary(line) for line in panel.lines if len(line.x)])


def _cells(title: str, heat: HeatMap) -> Html:
    count = len(heat.columns)
    some = range(0, count, max(1, math.ceil(count / _COLUMNS)))
    head = (heat.row_label or "row", *(heat.columns[i] for i in some))
    rows = [
        (label, *_short(*(float(heat.values[r, i]) for i in some)))
        for r, label in enumerate(heat.rows)
    ]
    part = f", {len(some)} of {count}" if len(some) < count else ""
    return table(f"{title} ({heat.column_label or 'columns'}{part})", head, rows)


def _summary(line: Line) -> tuple[str, ...]:
    x, y = line.x, line.y
    if np.isnan(y).all():
        return (line.label, *["undefined"] * 6)
    low, high = int(np.nanargmin(y)), int(np.nanargmax(y))
    first, lowest, highest, last = _short(*(float(v) for v in (y[0], y[low], y[high], y[-1])))
    return (line.label, first, lowest, f"{x[low]:.10g}", highest, f"{x[high]:.10g}", last)


def _short(*values: float | int) -> tuple[str, ...]:
    return tuple("undefined" if math.isnan(v) else f"{v:.4g}" for v in values)

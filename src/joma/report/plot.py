"""Edge file for joma[plot]: panels as a matplotlib figure."""

import math
import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from joma._core.extras import extra
from joma._core.typing import Array
from joma.report.panels import Dot, HeatMap, Line, Panel, Reference

with extra("plot", packages=("matplotlib",), purpose="Drawing a figure"):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, which colour-blind readers can tell apart; yellow is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
MAP = "cividis"  # made to look the same to colour-blind readers

_WIDTH = 5.4  # inches of one panel
_ROW, _NARROW = 0.2, 0.15  # inches of one row of dots or cells
_MANY = 20  # rows of dots, or columns of cells, from which they are narrow
_APART = 0.2  # of a row, between the dots of two series
_LETTERS = 60  # of a title over lines; beside the labels of rows there is room for fewer
_LETTERS_BESIDE_ROWS = 48
_GREY = "#777777"


def save(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """Draw panels into a file; its ending says whether PNG, PDF or SVG."""
    figure = draw(panels, title=title)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=130)


def draw(panels: Sequence[Panel], *, title: str) -> Figure:
    """A figure of panels, two to a row; a wide one has a row to itself."""
    rows = _rows(panels)
    columns = 2 if len(panels) > 1 else 1
    heights = [max(_height(p) for p in row) for row in rows]
    layout = ConstrainedLayoutEngine(hspace=0.04, wspace=0.03)
    figure = Figure(figsize=(_WIDTH * columns, sum(heights) + 0.5), layout=layout)
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            wide = panel.wide or columns == 1
            _draw(figure.add_subplot(grid[i, :] if wide else grid[i, j]), panel, wide=panel.wide)
    figure.suptitle(textwrap.fill(title, (_LETTERS - 10) * columns))
    return figure


def _rows(panels: Sequence[Panel]) -> list[list[Panel]]:
    rows: list[list[Panel]] = []
    for panel in panels:
        if panel.wide or not rows or len(rows[-1]) == 2 or rows[-1][0].wide:
            rows.append([panel])
        else:
            rows[-1].append(panel)
    return rows


def _height(panel: Panel) -> float:
    legend = 0.17 * math.ceil(len(_legend_labels(panel)) / 2)
    if panel.lines:
        return 3.0 + legend
    if panel.heat is not None:
        narrow = len(panel.heat.columns) >= _MANY or not panel.heat.printed
        return 1.5 + (_NARROW if narrow else _ROW) * len(panel.heat.rows)
    rows = len(_dot_rows(panel))
    return 1.2 + legend + (_NARROW if rows >= _MANY else _ROW) * max(3, rows)


def _legend_labels(panel: Panel) -> list[str]:
    series = dict.fromkeys(d.series for d in panel.dots if d.series)
    return [line.label for line in panel.lines] + [*series] + [r.label for r in panel.references]


def _draw(ax: Any, panel: Panel, *, wide: bool) -> None:
    if panel.heat is not None:
        _draw_heat(ax, panel.heat, panel.value_label)
    elif panel.lines:
        _draw_lines(ax, panel)
    else:
        _draw_dots(ax, panel)
    # A heading above the columns needs a line of its own below the title.
    pad = 20 if panel.heat is not None and panel.heat.groups else 6
    letters = _LETTERS if panel.lines else _LETTERS_BESIDE_ROWS
    ax.set_title(textwrap.fill(panel.title, letters * (2 if wide else 1)), fontsize=10, pad=pad)


def _draw_lines(ax: Any, panel: Panel) -> None:
    for i, line in enumerate(panel.lines):
        draw_one = _draw_points if line.points else _draw_line
        draw_one(ax, line, i)
    for reference in panel.references:
        _draw_reference(ax, reference, vertical=reference.axis == "time")
    ax.set(xlabel=panel.time_label, ylabel=panel.value_label)
    if panel.log_time:
        _log_time(ax, np.concatenate([line.x for line in panel.lines]))
    ax.set_yscale("log" if panel.log_value else "linear")
    ax.set(xlim=panel.time_range, ylim=panel.value_range)
    _legend(ax)


def _log_time(ax: Any, times: Float[Array, " time"]) -> None:
    """A log axis; with 0 on it, one that begins at the first time after 0, with nothing between."""
    if np.all(times > 0):
        ax.set_xscale("log")
        return
    first, last = times[times > 0].min(initial=math.inf), times.max()
    if not math.isfinite(first):
        return
    ax.set_xscale("symlog", linthresh=first, linscale=0.5)
    decades = range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1)
    ax.set_xticks([0, *(10.0**i for i in decades)])


def _draw_line(ax: Any, line: Line, index: int) -> None:
    colour, style = COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]
    style = "--" if line.dashed and style == "-" else style
    ax.plot(line.x, line.y, color=colour, linestyle=style, linewidth=1.4, label=line.label)
    ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)


def _draw_points(ax: Any, line: Line, index: int) -> None:
    colour = COLOURS[index % len(COLOURS)]
    face = "white" if line.dashed else colour
    ax.vlines(line.x, line.low, line.high, color=colour, linewidth=1.0)
    style = {"color": colour, "markerfacecolor": face, "markersize": 4}
    ax.plot(line.x, line.y, MARKERS[index % len(MARKERS)], label=line.label, **style)


def _draw_dots(ax: Any, panel: Panel) -> None:
    rows = _dot_rows(panel)
    series = list(dict.fromkeys(dot.series for dot in panel.dots))
    for row, (_, dots) in enumerate(rows):
        for dot in dots:
            index = series.index(dot.series)
            place = row + _APART * (index - (len(series) - 1) / 2)
            _draw_dot(ax, place, dot, index if dot.series else None)
    for reference in panel.references:
        _draw_reference(ax, reference, vertical=True)
    size = 7 if len(rows) >= _MANY else 8
    ax.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=size)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set(xlabel=panel.value_label)
    ax.set_xscale("log" if panel.log_value else "linear")
    if all(float(dot.low).is_integer() and float(dot.high).is_integer() for dot in panel.dots):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlim=panel.value_range)
    ax.grid(axis="x", alpha=0.3)
    if _legend_labels(panel):
        _legend(ax)


def _dot_rows(panel: Panel) -> list[tuple[str, list[Dot]]]:
    """Labels from above to below, with their dots: one each, or one of every series."""
    if not any(dot.series for dot in panel.dots):
        return [(dot.label, [dot]) for dot in panel.dots]
    labels = dict.fromkeys(dot.label for dot in panel.dots)
    return [(label, [d for d in panel.dots if d.label == label]) for label in labels]


def _draw_dot(ax: Any, row: float, dot: Dot, series: int | None) -> None:
    index = int(dot.hollow) if series is None else series
    colour, marker = (
        COLOURS[index % len(COLOURS)],
        "o" if series is None else MARKERS[index % len(MARKERS)],
    )
    face = "none" if dot.hollow else colour
    known = ax.get_legend_handles_labels()[1]
    label = dot.series if dot.series and dot.series not in known else None
    ax.plot([dot.low, dot.high], [row, row], color=colour, linewidth=1.4)
    style = {"color": colour, "markerfacecolor": face, "markersize": 5, "linestyle": "none"}
    ax.plot([dot.value], [row], marker, label=label, **style)


def _draw_reference(ax: Any, reference: Reference, *, vertical: bool) -> None:
    style = {"color": _GREY, "label": reference.label, "zorder": 0}
    if reference.high is None:
        draw_line = ax.axvline if vertical else ax.axhline
        draw_line(reference.low, linestyle=":" if reference.axis == "value" else "-.", **style)
    else:
        draw_band = ax.axvspan if vertical else ax.axhspan
        draw_band(reference.low, reference.high, alpha=0.25, linewidth=0, **style)


def _legend(ax: Any) -> None:
    # Below the axes: inside, it would lie on a curve sooner or later. The pad clears the label.
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.6}
    ax.legend(ncols=2, frameon=False, fontsize=8, **place)


def _draw_heat(ax: Any, heat: HeatMap, value_label: str) -> None:
    low, high = heat.span or (float(np.nanmin(heat.values)), float(np.nanmax(heat.values)))
    image = ax.imshow(heat.values, cmap=MAP, vmin=low, vmax=high, aspect="auto")
    ax.set_facecolor("lightgrey")
    across, down = _ticks(heat.columns, heat.printed), _ticks(heat.rows, heat.printed)
    ax.set_xticks(across, [heat.columns[i] for i in across], fontsize=8)
    ax.set_yticks(down, [heat.rows[i] for i in down], fontsize=8)
    ax.set(xlabel=heat.column_label, ylabel=heat.row_label)
    if heat.printed:
        _draw_numbers(ax, heat, (low + high) / 2)
    for row, column in heat.outlined:
        corner = (column - 0.46, row - 0.44)
        ax.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=COLOURS[1], linewidth=2))
    _draw_groups(ax, heat.groups)
    ax.figure.colorbar(image, ax=ax, pad=0.02).set_label(value_label, fontsize=8)


def _ticks(labels: tuple[str, ...], every: bool) -> range:
    """Which labels there is room for."""
    return range(0, len(labels), 1 if every else max(1, math.ceil(len(labels) / 10)))


def _draw_numbers(ax: Any, heat: HeatMap, middle: float) -> None:
    size = 6 if len(heat.columns) >= _MANY else 7
    form = "g" if np.all(np.isin(heat.values, (0, 1))) else ".2f"
    for (row, column), value in np.ndenumerate(heat.values):
        if not np.isnan(value):
            # The lower half of the map is dark.
            colour = "white" if value < middle else "black"
            style = {"color": colour, "fontsize": size, "ha": "center", "va": "center"}
            ax.text(column, row, format(value, form), **style)


def _draw_groups(ax: Any, groups: tuple[str, ...]) -> None:
    start = 0
    for name, members in groupby(groups):
        width = len(list(members))
        middle = start + (width - 1) / 2
        place = ax.get_xaxis_transform()
        ax.text(middle, 1.02, name, transform=place, fontsize=8, ha="center", va="bottom")
        if start:
            ax.axvline(start - 0.5, color="white", linewidth=3)
        start += width

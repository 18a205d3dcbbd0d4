"""Edge file for joma[plot]: panels as a matplotlib figure."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joma._core.extras import extra
from joma.report.panels import Dot, Line, Panel

with extra("plot", packages=("matplotlib",), purpose="Drawing a figure"):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; yellow is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", "-.", ":")

_WIDTH = 5.4  # inches of one panel
_DOT = 0.24  # inches of one row of dots


def save(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """Draw panels into a file; its ending says whether PNG, PDF or SVG."""
    figure = draw(panels, title=title)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=130)


def draw(panels: Sequence[Panel], *, title: str) -> Figure:
    """A figure of panels, two to a row."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    heights = [
        max(_height(p) for p in panels[i : i + columns]) for i in range(0, len(panels), columns)
    ]
    figure = Figure(figsize=(_WIDTH * columns, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    axes = list(grid.flat)
    for panel, ax in zip(panels, axes, strict=False):
        _draw_lines(ax, panel) if panel.lines else _draw_dots(ax, panel)
        ax.set_title(panel.title, fontsize=10)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.suptitle(title)
    return figure


def _height(panel: Panel) -> float:
    legend = 0.2 * math.ceil(len(panel.lines) / 2)
    return 3.0 + legend if panel.lines else 1.1 + _DOT * len(panel.dots)


def _draw_lines(ax: Any, panel: Panel) -> None:
    for i, line in enumerate(panel.lines):
        _draw_line(ax, line, COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)])
    ax.set(xlabel=panel.time_label, ylabel=panel.value_label)
    ax.set_xscale("symlog" if panel.log_time else "linear")
    ax.set_yscale("log" if panel.log_value else "linear")
    # Below the axes: inside, it would lie on a curve sooner or later.
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize=8)


def _draw_line(ax: Any, line: Line, colour: str, style: str) -> None:
    style = "--" if line.dashed and style == "-" else style
    ax.plot(line.x, line.y, color=colour, linestyle=style, linewidth=1.4, label=line.label)
    ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)


def _draw_dots(ax: Any, panel: Panel) -> None:
    for row, dot in enumerate(panel.dots):
        _draw_dot(ax, row, dot)
    ax.set_yticks(range(len(panel.dots)), [dot.label for dot in panel.dots], fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel=panel.value_label)
    ax.set_xscale("log" if panel.log_value else "linear")
    ax.grid(axis="x", alpha=0.3)


def _draw_dot(ax: Any, row: int, dot: Dot) -> None:
    colour = COLOURS[1] if dot.hollow else COLOURS[0]
    face = "white" if dot.hollow else colour
    ax.plot([dot.low, dot.high], [row, row], color=colour, linewidth=1.4)
    ax.plot([dot.value], [row], "o", color=colour, markerfacecolor=face, markersize=5)

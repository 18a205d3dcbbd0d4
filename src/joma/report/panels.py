"""A figure before it is drawn: panels of lines, dots or cells, with bands over seeds.

Whoever makes a figure says what is in it; `joma.report.plot` draws it.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float

from joma._core.typing import Array


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve, with the range over seeds around it."""

    label: str
    x: Float[Array, " times"]
    y: Float[Array, " times"]
    low: Float[Array, " times"]
    high: Float[Array, " times"]
    dashed: bool = False
    """For controls and predictions."""
    points: bool = False
    """Drawn as separate points, hollow instead of dashed: nothing lies between them."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One number, with its range over seeds."""

    label: str
    value: float | int
    low: float | int
    high: float | int
    hollow: bool = False
    """For controls and predictions."""
    series: str = ""
    """Dots of several series share the row of their label, and a legend names the series."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A value to compare with, as a grey line across the panel; a band if `high` is given."""

    label: str
    low: float | int
    high: float | int | None = None
    axis: Literal["value", "time"] = "value"


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A table of numbers as colours. `nan` is left grey."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Float[Array, "rows columns"]
    row_label: str = ""
    column_label: str = ""
    groups: tuple[str, ...] = ()
    """A heading for every column; equal neighbours share one, and a line parts the others."""
    outlined: tuple[tuple[int, int], ...] = ()
    """Row and column of the cells that a frame picks out."""
    span: tuple[float | int, float | int] | None = None
    """Values of the darkest and the lightest colour; those of the table if absent."""
    times: Float[Array, " columns"] | None = None
    """When each column is, if the columns are moments of a run."""
    printed: bool = True
    """Whether every number stands in its cell; of a large table they could not be read."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes: lines over time (or whatever `time_label` says), dots, or a heat map."""

    title: str
    value_label: str
    """What is measured, with its unit."""
    time_label: str = ""
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    log_time: bool = False
    log_value: bool = False
    heat: HeatMap | None = None
    references: tuple[Reference, ...] = ()
    time_range: tuple[float | int, float | int] | None = None
    value_range: tuple[float | int, float | int] | None = None
    """What lies outside is cut off: say so in the title."""
    wide: bool = False
    """Takes the whole width of the figure."""

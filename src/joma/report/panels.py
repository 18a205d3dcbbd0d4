"""A figure before it is drawn: panels of lines or of dots, with bands over seeds.

Whoever makes a figure says what is in it; `joma.report.plot` draws it.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One number, with its range over seeds."""

    label: str
    value: float
    low: float
    high: float
    hollow: bool = False
    """For controls and predictions."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes: lines over time, or dots, one to a row."""

    title: str
    value_label: str
    """What is measured, with its unit."""
    time_label: str = ""
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    log_time: bool = False
    log_value: bool = False

"""The small things that every figure of plotly.js is made of: safe text, short numbers, axes."""

import html
import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from joma._core.typing import Array
from joma.report.panels import Panel

Figure: TypeAlias = dict[str, Any]

_LONGEST: Final = 70


def text(words: str) -> str:
    """Words for plotly, which would otherwise read tags and templates in them; long ones are cut.

    Example:
        >>> text("<b>run</b>")
        '&lt;b&gt;run&lt;/b&gt;'
    """
    short = words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
    # A space of no width: plotly has no other way to write the two signs that open a template.
    return html.escape(short, quote=False).replace("%{", "%\u200b{")


def number(value: float | int) -> float | int | None:
    """A number for JSON, of five digits; what is not finite is left out of the drawing."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.5g}")


def numbers(values: Array) -> list[float | int | None]:
    """Many of them."""
    return [number(v) for v in values.tolist()]


def time_axis(panel: Panel, title: str) -> Figure:
    """The axis of steps."""
    axis: Figure = {"title": {"text": text(title)}}
    if panel.time_range is not None:
        axis["range"] = [float(end) for end in panel.time_range]
    return axis


def value_axis(panel: Panel) -> Figure:
    """The axis of what is measured."""
    axis: Figure = {"title": {"text": text(panel.value_label)}, "automargin": True}
    powers = {"type": "log", "dtick": 1, "exponentformat": "power"}
    axis |= powers if panel.log_value else {"type": "linear"}
    if panel.value_range is not None:
        ends = [float(end) for end in panel.value_range]
        axis["range"] = [math.log10(max(e, 1e-300)) for e in ends] if panel.log_value else ends
    return axis


def stretch(panels: Sequence[Panel]) -> Figure:
    """How the page is to stretch the time axis: step 0 has no place on a logarithmic one."""
    return {"log": any(panel.log_time for panel in panels)}

"""Panels as figures of plotly: text is text, numbers are finite, nothing is lost."""

import json
from itertools import pairwise

import numpy as np
import pytest

from browser.material import ATTACKS
from joma.report.drawing import number, text
from joma.report.panels import Dot, HeatMap, Line, Panel, Reference
from joma.report.traces import figure, stacked

X = np.array([0.0, 1.0, 10.0])
NAN = float("nan")
LINE = Line(label="one", x=X, y=X, low=X - 1, high=X + 1)
PLAIN = Line(label="two", x=X, y=X, low=X, high=X, dashed=True)
HEAT = HeatMap(
    rows=("layer 0", "layer 1"),
    columns=("0", "1", "10"),
    values=np.array([[1.0, NAN, 3.0], [4.0, 5.0, float("inf")]]),
    times=X,
    printed=False,
)


def panel(**more):
    return Panel(title="t", value_label="v", time_label="step", **more)


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_tag_and_no_template_reaches_plotly(attack):
    assert "<" not in text(attack)
    assert "%{" not in text(attack)


def test_long_names_are_cut_and_numbers_are_short():
    assert len(text("x" * 500)) == 70
    assert [number(v) for v in (1.0, 0.123456789, NAN, float("inf"))] == [1, 0.12346, None, None]


def test_a_band_is_drawn_only_where_there_is_one():
    made = figure(panel(lines=(LINE, PLAIN)))["data"]
    assert [t.get("fill") for t in made] == ["toself", None, None]
    assert made[2]["line"]["dash"] == "dash"


def test_every_kind_of_panel_is_json():
    dots = (Dot(label="a", value=1, low=0, high=2), Dot(label="a", value=1, low=0, high=2))
    references = (Reference(label="r", low=1.0), Reference(label="b", low=0.0, high=1.0))
    for made in (
        figure(panel(lines=(LINE,), references=references)),
        figure(panel(dots=dots, references=references, log_value=True)),
        figure(panel(heat=HEAT)),
        figure(panel(heat=HeatMap(rows=("a",), columns=("x", "x"), values=np.ones((1, 2))))),
        stacked([panel(lines=(LINE,)), panel(heat=HEAT)]),
    ):
        assert made["layout"]["height"] > 0
        json.dumps(made, allow_nan=False)


def test_many_lines_have_no_legend_and_ordered_colours():
    made = figure(panel(lines=(PLAIN,) * 13))
    assert not made["layout"]["showlegend"]
    assert all(trace["meta"]["ordered"] for trace in made["data"])


def test_the_columns_of_a_map_meet_half_way_as_the_axis_shows_them():
    (linear,) = figure(panel(heat=HEAT))["data"]
    assert linear["x"] == [0, 0.5, 5.5, 14.5]
    (long,) = figure(panel(heat=HEAT, log_time=True))["data"]
    assert long["x"][2] == pytest.approx(np.sqrt(2 * 11) - 1, rel=1e-4)  # five digits are kept


def test_stacked_panels_share_one_time_axis_without_overlap():
    made = stacked([panel(lines=(LINE,)), panel(heat=HEAT), panel(heat=HEAT)])
    assert {t.get("xaxis", "x") for t in made["data"]} == {"x"}
    spans = [made["layout"][axis]["domain"] for axis in ("yaxis", "yaxis2", "yaxis3")]
    assert all(above[0] > below[1] for above, below in pairwise(spans))

"""Figures are drawn from panels, and say what they show."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from joma.experiments import _figure, _runner, registry
from joma.report.panels import Dot, HeatMap, Line, Panel, Reference

pytest.importorskip("matplotlib")

X = np.linspace(0.0, 1.0, 5)
LINE = Line(label="one", x=X, y=X, low=X - 0.1, high=X + 0.1)
DOT = Dot(label="two", value=1.0, low=0.5, high=2.0)
HEAT = HeatMap(
    rows=("a", "b"),
    columns=("1", "2", "1"),
    groups=("left", "left", "right"),
    values=np.array([[0.0, 0.5, 1.0], [1.0, np.nan, 0.25]]),
    outlined=((0, 2),),
)


def axes_of(panels):
    from joma.report import plot

    return [ax for ax in plot.draw(panels, title="whole").axes if ax.get_label() != "<colorbar>"]


def test_every_panel_is_drawn_with_its_labels():
    panels = [
        Panel(title="curves", value_label="entropy (nats)", time_label="step", lines=(LINE,)),
        Panel(title="numbers", value_label="drift", dots=(DOT, DOT)),
        Panel(title="third", value_label="x", lines=(LINE,)),
    ]
    drawn = axes_of(panels)
    assert [ax.get_title() for ax in drawn] == ["curves", "numbers", "third"]
    assert drawn[0].get_ylabel() == "entropy (nats)"
    assert drawn[0].get_legend().get_texts()[0].get_text() == "one"
    assert [t.get_text() for t in drawn[1].get_yticklabels()] == ["two", "two"]


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_a_file_is_written(tmp_path, ending):
    from joma.report import plot

    path = tmp_path / f"figure.{ending}"
    plot.save([Panel(title="t", value_label="v", dots=(DOT,))], path, title="t")
    assert path.stat().st_size > 1000


def test_series_share_a_row_and_are_named_once_in_the_legend():
    dots = [Dot(label=n, value=1.0, low=1.0, high=1.0, series=s) for s in "ab" for n in ("x", "y")]
    (ax,) = axes_of([Panel(title="t", value_label="v", dots=tuple(dots))])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["x", "y"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b"]


def test_references_are_named_and_lie_on_their_axis():
    lines = (
        Reference(label="bar", low=0.5),
        Reference(label="when", low=0.25, axis="time"),
        Reference(label="band", low=0.1, high=0.2),
    )
    (ax,) = axes_of([Panel(title="t", value_label="v", lines=(LINE,), references=lines)])
    names = [t.get_text() for t in ax.get_legend().get_texts()]
    assert names == ["one", "bar", "when", "band"]
    by_label = {line.get_label(): line for line in ax.lines}
    assert set(by_label["bar"].get_ydata()) == {0.5}
    assert set(by_label["when"].get_xdata()) == {0.25}


def test_a_heat_map_prints_its_numbers_and_leaves_nan_empty():
    (ax,) = axes_of([Panel(title="t", value_label="v", heat=HEAT)])
    printed = sorted(t.get_text() for t in ax.texts)
    assert printed == sorted(["0.00", "0.50", "1.00", "1.00", "0.25", "left", "right"])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "1"]


def test_a_wide_panel_has_a_row_to_itself():
    narrow = Panel(title="t", value_label="v", dots=(DOT,))
    one, wide, two, three = axes_of([narrow, replace(narrow, wide=True), narrow, narrow])
    assert wide.get_gridspec().ncols == 2
    assert wide.get_subplotspec().colspan == range(2)
    rows = [ax.get_subplotspec().rowspan.start for ax in (one, wide, two, three)]
    assert rows == [0, 1, 2, 2]


def test_a_logarithmic_time_axis_keeps_zero_if_there_is_one():
    later = replace(LINE, x=X + 1)
    panels = [Panel(title="t", value_label="v", lines=(c,), log_time=True) for c in (LINE, later)]
    assert [ax.get_xscale() for ax in axes_of(panels)] == ["symlog", "log"]


def test_lines_of_many_arms_differ_in_colour_or_style():
    many = tuple(replace(LINE, label=str(i)) for i in range(_figure.MOST_LINES))
    (ax,) = axes_of([Panel(title="t", value_label="v", lines=many)])
    looks = [(line.get_color(), line.get_linestyle()) for line in ax.lines]
    assert all(a != b for a, b in combinations(looks, 2))


def test_an_experiment_without_a_figure_of_its_own_shows_every_metric(tmp_path):
    experiment = replace(registry.load("thm2"), figure=None)
    _runner.run("thm2", experiment, seeds=2, out=tmp_path)
    evidence = _runner.evidence("thm2", experiment, out=tmp_path)
    panels = _figure.panels(experiment, evidence)
    shown = {p.title.split(":")[0] for p in panels}
    assert shown == {m.replace("_", " ") for m in evidence.table["metric"].unique().to_pylist()}
    assert all("2 seeds" in p.title for p in panels)

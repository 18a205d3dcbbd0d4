"""Figures are drawn from panels, and say what they show."""

import numpy as np
import pytest

from joma.experiments import _figure, _runner, registry
from joma.report.panels import Dot, Line, Panel

pytest.importorskip("matplotlib")

X = np.linspace(0.0, 1.0, 5)
LINE = Line(label="one", x=X, y=X, low=X - 0.1, high=X + 0.1)
DOT = Dot(label="two", value=1.0, low=0.5, high=2.0)


def test_every_panel_is_drawn_with_its_labels():
    from joma.report import plot

    panels = [
        Panel(title="curves", value_label="entropy (nats)", time_label="step", lines=(LINE,)),
        Panel(title="numbers", value_label="drift", dots=(DOT, DOT)),
        Panel(title="third", value_label="x", lines=(LINE,)),
    ]
    figure = plot.draw(panels, title="whole")
    drawn = [ax for ax in figure.axes if ax.axison]
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


def test_an_experiment_without_a_figure_of_its_own_shows_every_metric(tmp_path):
    experiment = registry.load("thm2")
    _runner.run("thm2", experiment, seeds=2, out=tmp_path)
    evidence = _runner.evidence("thm2", experiment, out=tmp_path)
    panels = _figure.panels(experiment, evidence)
    shown = {p.title.split(":")[0] for p in panels}
    assert shown == {m.replace("_", " ") for m in evidence.table["metric"].unique().to_pylist()}
    assert all("2 seeds" in p.title for p in panels)

"""Every figure is labelled, says what its bands are, and has no text on top of other text."""

from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

from joma.experiments import _figure, _runner, _thm1_figure, neuron, registry
from joma.experiments._stress_table import CONDITIONS
from joma.experiments._thm1_claims import DRIFT
from joma.experiments.base import Evidence, records
from joma.records.schema import Kind
from joma.report.panels import HeatMap

pytest.importorskip("matplotlib")

QUICK = ("fig2", "fig4", "fig9", "low_rank", "thm2", "thm3", "thm4", "thm5")
NAMES = [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in ("fig3", "neuron", "thm1"))]
SEEDS = 2
TALLEST = 1.4  # height over width: about one and a half screens
TOUCH = 1.0  # pixels that two boxes of text may share: their edges are rounded


@pytest.fixture(scope="module", params=NAMES)
def shown(request, tmp_path_factory):
    """An experiment, what two seeds of it gave, and its panels."""
    name, experiment = request.param, registry.load(request.param)
    folder = tmp_path_factory.mktemp(name)
    _runner.run(name, experiment, seeds=min(SEEDS, experiment.seeds), out=folder)
    evidence = _runner.evidence(name, experiment, out=folder)
    return experiment, evidence, _figure.panels(experiment, evidence)


def boxes(figure):
    """Where each piece of text is, in pixels: titles, labels of axes and ticks, legends, cells."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [figure._suptitle]
    for ax in figure.axes:
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        texts += [*_inside(ax.get_xticklabels(), ax, 0), *_inside(ax.get_yticklabels(), ax, 1)]
        texts += [] if ax.get_legend() is None else ax.get_legend().get_texts()
    kept = [t for t in texts if t.get_text() and t.get_visible()]
    return [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in kept]


def _inside(labels, ax, axis):
    """Labels of the ticks that are drawn: those within the limits."""
    low, high = sorted((ax.get_xlim, ax.get_ylim)[axis]())
    return [t for t in labels if low <= t.get_position()[axis] <= high]


def overlaps(one, other):
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width > TOUCH and height > TOUCH


def test_the_figure_is_its_own(shown):
    assert shown[0].figure is not None


def test_no_text_is_cut_off_or_covered(shown):
    from joma.report import plot

    experiment, _, panels = shown
    figure = plot.draw(panels, title=experiment.title)
    placed = boxes(figure)
    width, height = figure.get_size_inches() * figure.dpi
    outside = [
        text
        for text, box in placed
        if box.x0 < -TOUCH or box.y0 < -TOUCH or box.x1 > width + TOUCH or box.y1 > height + TOUCH
    ]
    assert not outside
    covered = [(a, b) for (a, one), (b, other) in combinations(placed, 2) if overlaps(one, other)]
    assert not covered
    assert height <= TALLEST * width


def test_axes_are_named_and_bands_are_explained(shown):
    _, evidence, panels = shown
    for panel in panels:
        assert panel.title and panel.value_label
        assert panel.time_label or not panel.lines
        parts = [(line.label, line.low, line.high) for line in panel.lines]
        parts += [(d.label, d.low, d.high) for d in panel.dots if "reference" not in d.series]
        if any(np.any(np.asarray(low) < high) for _, low, high in parts):
            assert f"range over {len(evidence.seeds)} " in panel.title


def test_labels_of_one_panel_differ(shown):
    for panel in shown[2]:
        labels = [line.label for line in panel.lines] + [r.label for r in panel.references]
        labels += [(dot.label, dot.series) for dot in panel.dots]
        assert len(set(labels)) == len(labels)


def test_the_stress_table_shows_every_reference_once_with_its_band():
    rows = [row for condition in CONDITIONS for row in condition.rows]
    named = []
    for row in rows:
        steps, values = list(row.reference), np.nan_to_num(list(row.reference.values()), nan=1.0)
        for kind in (Kind.MEASURED, Kind.PREDICTED):
            table = records(row.arm, 0, kind=kind, metric=DRIFT, step=steps, value=1.1 * values)
            named.append(_runner._named("thm1", table))
    table = _thm1_figure._table(Evidence(pa.concat_tables(named)))
    references = [d for dots in table for d in dots if d.series == _thm1_figure.REFERENCE]
    wanted = [d for row in rows for d in row.reference.values() if not np.isnan(d)]
    assert [d.value for d in references] == wanted
    assert [d.low for d in references] == pytest.approx([0.8 * d for d in wanted])
    assert [d.high for d in references] == pytest.approx([1.2 * d for d in wanted])
    panel = _thm1_figure._ratio_panel(table)
    assert panel.lines[0].y == pytest.approx(1.1)  # measured over reference
    assert panel.lines[1].y == pytest.approx(1.0)  # measured over law


def test_the_phase_map_puts_every_cell_in_its_place():
    config = neuron.EXPERIMENT.presets["ci"]
    cells = [(d, n) for d in config.data() for n in config.nodes()]
    tables = [
        records(
            neuron.arm(d, n),
            0,
            metric=[neuron.DROP, neuron.BOUNCE],
            step=[1.0, 1.0],
            value=[i, i / 100],
        )
        for i, (d, n) in enumerate(cells)
    ]
    whole = (neuron.RELU, neuron.LINEAR, neuron.RELU + neuron.HALF, neuron.LINEAR + neuron.HALF)
    tables += [
        records(a, 0, metric=neuron.ENTROPY, step=[0.0, 1.0], value=[1.0, 2.0]) for a in whole
    ]
    named = [_runner._named("neuron", table) for table in tables]
    evidence = Evidence(pa.concat_tables(named))
    drop, *bounces = (p.heat for p in neuron.figure(evidence)[1:])
    assert isinstance(drop, HeatMap) and len(bounces) == len(config.decays)
    place = cells.index((neuron.POINT, neuron.RELU_NODE))
    row, column = drop.rows.index("ReLU, bias 60 frozen"), 4  # |x+| = 1, p = .2
    assert (drop.groups[column], drop.columns[column]) == ("|x+| = 1", "0.2")
    assert drop.values[row, column] == place
    assert bounces[0].values[row, column] == place / 100
    seen = sorted(v for heat in bounces for v in heat.values.flat)
    assert seen == [i / 100 for i in range(len(cells))]
    assert ((row, column) in bounces[0].outlined) == (place / 100 >= neuron.BOUNCES)

"""A page says first what matters, shows what there is, and no more than it can carry."""

import html
import json
import re

import numpy as np
import pyarrow as pa
import pytest

from browser.material import run, sweep
from joma._core.errors import JomaError, StoreError
from joma.records import arrow
from joma.records.store import Store
from joma.report.courses import courses
from joma.report.download import LARGEST as LARGEST_TABLE, download
from joma.report.material import Claimed, material, stores
from joma.report.timeline import snapshots, timeline

pytest.importorskip("plotly")
from joma.report.page import LARGEST, figure_files, page


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "records", provenance={"config": {"rate": 0.1}})
    made.append(run("dies"))
    made.append(run("lives", dies=False))
    return made


def words(text):
    """The page without its head and scripts, as someone reads it."""
    text = text[text.index("<main>") :]
    text = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub("<[^>]*>", " ", text))


def drawings(text):
    return json.loads(re.search('id="drawings">(.*?)</script>', text, re.DOTALL)[1])


def test_the_alarm_comes_before_everything_else(store):
    said = words(page([material(store.path)]))
    order = ("What matters", "attention collapsing", "State of each layer of", "Run by run")
    places = [said.index(each) for each in order]
    assert places == sorted(places)
    assert "Try a lower peak learning rate" in said
    assert "no warning" in said


def test_the_page_is_whole_and_small(store):
    text = page([material(store.path)])
    assert len(text.encode()) < LARGEST
    assert not re.search(r'(src|href)="(?!#)', re.sub("<script>.*?</script>", "", text, flags=re.S))


def test_bounds_are_drawn_and_their_kind_is_said(store):
    text = page([material(store.path)])
    assert "bands: certified bounds" in words(text)
    bands = [t for f in drawings(text) for t in f["data"] if t.get("fill") == "toself"]
    assert bands


def test_bounds_of_some_heads_are_none_of_the_mean(tmp_path):
    rows = [
        arrow.from_columns(
            run="r",
            metric="m",
            step=[0.0],
            value=[1.0],
            head=[0],
            layer=[0],
            lower=[0.0],
            upper=[2.0],
            bound="certified",
        ),
        arrow.from_columns(run="r", metric="m", step=[0.0], value=[5.0], head=[1], layer=[0]),
    ]
    (course,) = courses(pa.concat_tables(rows))
    (found,) = course.curves
    assert found.low == found.high == found.curve.values == 3.0


def test_loss_and_maps_share_their_axis(store):
    (dies, _) = courses(store.read())
    panels = timeline(dies, most=100, columns=100)
    assert [p.heat is None for p in panels] == [True, False, False, False]
    assert panels[1].heat.values.shape == (3, 40)


def test_a_map_of_fewer_columns_keeps_the_extremes(store):
    (dies, _) = courses(store.read())
    full, few = (timeline(dies, most=100, columns=n)[1:] for n in (100, 5))
    assert few[0].heat.values.shape == (3, 5)
    assert np.nanmin(few[0].heat.values) == np.nanmin(full[0].heat.values)  # entropy
    assert np.nanmax(few[1].heat.values) == np.nanmax(full[1].heat.values)  # logit


def test_predictions_are_drawn_on_request_and_called_a_model(store):
    steps = np.arange(0.0, 400.0, 10.0)
    store.append(
        arrow.from_columns(
            run="dies",
            metric="attention_entropy",
            kind="predicted",
            step=steps,
            value=2.5 * np.exp(-steps / 25),
            layer=[0] * len(steps),
        )
    )
    read = material(store.path)
    assert "theory, a model" not in words(page([read]))
    said = words(page([read], theory=True))
    assert "(theory, a model)" in said
    assert "Predicted against measured" in said


def test_attention_maps_are_shown_where_there_are_some(store):
    pairs = [(q, k) for q in range(3) for k in range(q + 1)]
    for step in (0.0, 10.0, 20.0, 30.0):
        store.append(
            arrow.from_columns(
                run="dies",
                metric="mean_map",
                step=[step] * 6,
                layer=[0] * 6,
                site=[f"q{q:02d}.k{k:02d}" for q, k in pairs],
                value=[1 / (q + 1) for q, _ in pairs],
            )
        )
    table = store.read()
    found = snapshots(table, courses(table)[0])
    assert [re.search(r"step (\d+)", p.title)[1] for p in found] == ["0", "20", "30"]
    assert found[0].heat.values[2].tolist() == [1 / 3] * 3
    assert np.isnan(found[0].heat.values[0, 1])
    assert not snapshots(table, courses(table)[1])


def test_a_site_that_is_no_pair_of_positions_is_left_out(store):
    store.append(
        arrow.from_columns(
            run="dies",
            metric="mean_map",
            step=[0.0] * 3,
            layer=[0] * 3,
            site=["q999999999.k0", "nonsense", "q00.k00"],
            value=[1.0] * 3,
        )
    )
    table = store.read()
    (found,) = snapshots(table, courses(table)[0])
    assert found.heat.values.shape == (1, 1)


def test_claims_come_with_control_rule_and_command(store):
    claim = Claimed(
        name="bounce",
        says="It bounces.",
        verdict="fails",
        numbers="depth 1",
        control="linear",
        rule="depth > 2",
        command="joma run fig6",
    )
    found = material(store.path)
    said = words(page([type(found)(**{**vars(found), "claims": (claim,), "title": "Figure 6"})]))
    for text in ("fails", "It bounces.", "linear", "depth > 2", "joma run fig6"):
        assert text in said


def test_what_could_not_be_measured_is_said_with_its_reason(store):
    store.append(
        arrow.from_columns(
            run="dies", metric="stable_rank", step=[1.0], value=[np.nan], status="zero matrix"
        )
    )
    assert "zero matrix" in words(page([material(store.path)]))


def test_a_small_table_is_carried_whole(store):
    table = store.read()
    made = download([table], courses(table))
    assert made.whole
    assert made.text.count("\n") == table.num_rows + 1


def test_a_large_table_is_thinned_and_its_place_is_said(tmp_path):
    found = material(sweep(tmp_path / "sweep", 200_000).path)
    made = download([found.table], courses(found.table))
    assert not made.whole
    assert len(made.text) <= LARGEST_TABLE
    text = page([found])
    assert len(text.encode()) < LARGEST
    said = words(text)
    assert str(tmp_path / "sweep") in said
    assert "its lowest and its highest value are kept" in said


def test_no_cell_of_the_table_is_a_formula(tmp_path):
    table = arrow.from_columns(run="=1+1", metric="loss", step=[0.0], value=[-1.0])
    made = download([table], courses(table))
    assert "'=1+1" in made.text
    assert ",-1," in made.text


def test_many_runs_fit_by_drawing_fewer(tmp_path):
    store = Store(tmp_path)
    with store.writer() as writer:
        for i in range(60):
            writer.append(run(f"run{i:02d}", steps=30, layers=12, dies=i == 7))
    text = page([material(tmp_path)])
    assert len(text.encode()) < LARGEST
    said = words(text)
    assert "12 of 60 runs are drawn one by one" in said
    drawn = re.findall(r"run\d\d", said[said.index("Run by run") :])
    assert drawn[0] == "run07"


def test_figures_for_papers_have_every_metric(store):
    made = list(figure_files([material(store.path)]))
    assert [title for _, title, _ in made] == ["dies", "lives"]
    assert sum(p.heat is not None for p in made[0][2]) == 3


def test_stores_are_found_inside_folders(tmp_path, store):
    assert stores([tmp_path]) == [store.path]
    assert stores([store.path, tmp_path]) == [store.path]


def test_a_folder_without_records_is_explained(tmp_path):
    with pytest.raises(StoreError, match="neither it nor a folder inside it"):
        stores([tmp_path])


def test_an_empty_store_is_explained(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(JomaError, match="has no rows yet"):
        material(tmp_path)


def test_records_without_layers_still_make_a_page(tmp_path):
    Store(tmp_path).append(arrow.from_columns(run="r", metric="x", step=[0, 1], value=[1.0, 2.0]))
    assert "Nothing here can be judged" in words(page([material(tmp_path)]))

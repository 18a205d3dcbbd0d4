"""Figure 7 on a suite of our own: how it is made, read, served by a hub, and judged."""

import importlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from joma import sources
from joma._core.errors import JomaError
from joma.data.text import vocabulary
from joma.experiments import _figure, _suite, fig7
from joma.experiments._suite import DRIFT, SMALL, SUITE, Suite
from joma.experiments.base import Evidence, Verdict, records
from joma.metrics import rank
from joma.records.schema import Kind
from joma.sources.memory import MemorySource
from standin.hub import Hub

pytest.importorskip("transformers")
pytestmark = pytest.mark.hf

TINY = replace(SMALL, steps=4, every=2)


@pytest.fixture(scope="module")
def made(shared, tmp_path_factory):
    """A tiny suite on disk, at `owner/suite` as a hub would hold it; and its losses."""
    folder = tmp_path_factory.mktemp("hub")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOMA_SHARED", str(shared))
        own = importlib.import_module("joma.experiments._suite_hf")
        losses = own.written(TINY, 0, folder / "owner" / "suite", folder.parent / "work")
    return folder, losses


@pytest.fixture
def data(shared, monkeypatch):
    monkeypatch.setenv("JOMA_SHARED", str(shared))


def lines(evidence_of, **curves):
    """Evidence with one curve per (arm, layer)."""
    parts = [
        records(
            arm, 0, kind=Kind.CONTROL if arm == DRIFT else Kind.MEASURED,
            metric=evidence_of, layer=layer, step=np.arange(len(values), dtype=float),
            value=np.array(values, dtype=float),
        )
        for (arm, layer), values in curves["of"].items()
    ]  # fmt: skip
    table = pa.concat_tables(parts).unify_dictionaries()
    names = pa.array([f"fig7/{run}" for run in table["run"].to_pylist()])
    field = table.schema.field("run")
    return Evidence(table.set_column(0, field, names.cast(field.type)))


def ranks(**arms):
    return lines(
        "stable_rank", of={(arm, i): v for arm, vs in arms.items() for i, v in enumerate(vs)}
    )


FLAT = [10.0, 10.0, 10.0]


def test_the_paper_preset_has_forty_revisions_of_a_model_of_width_128():
    suite = fig7.EXPERIMENT.presets["paper"].suite
    assert len(suite.revisions) >= 40 and suite.revisions[0] == 0
    assert suite.embed >= 128 and 2 <= suite.layers <= 4


def test_revisions_come_sharded_in_both_formats_with_the_same_names(made):
    folder, losses = made
    source = sources.open(str(folder / "owner" / "suite"))
    found = source.revisions()
    assert [r.step for r in found] == [0, 1, 2, 4]
    shapes = [source.index(r.name).shapes for r in found]
    assert all(s == shapes[0] for s in shapes)
    kinds = [{file.rpartition(".")[2] for file in source.index(r.name).files} for r in found]
    assert kinds == [{"safetensors"}, {"bin"}, {"safetensors"}, {"bin"}]
    assert all(len(source.index(r.name).files) > 1 for r in found)
    assert losses["step"].to_pylist() == [0.0, 1.0, 2.0, 4.0]


def test_training_changes_every_matrix_and_transformers_reads_what_we_read(made):
    transformers = pytest.importorskip("transformers")
    path = made[0] / "owner" / "suite"
    source = sources.open(str(path))
    first, last = (source.read(n, source.index(n).tensors) for n in ("step0", "step4"))
    matrices = [n for n in first if "dense" in n and n.endswith("weight")]
    assert matrices and not any(torch.equal(first[n], last[n]) for n in matrices)
    loaded = transformers.AutoModel.from_pretrained(path / "step4").state_dict()
    name = "layers.0.mlp.dense_h_to_4h.weight"
    assert torch.equal(loaded[name], last[f"gpt_neox.{name}"])


def test_the_tokeniser_gives_the_ids_that_the_model_was_trained_on(made, data):
    transformers = pytest.importorskip("transformers")
    known = vocabulary(_suite.content("train").lower().split(), TINY.vocab)
    tokeniser = transformers.AutoTokenizer.from_pretrained(made[0] / "owner" / "suite" / "step4")
    text = _suite.content("valid")[:2000]
    ids = tokeniser(text, add_special_tokens=False)["input_ids"]
    assert ids == known.encode(text.lower().split()).tolist()


def test_an_interrupted_suite_is_finished_to_the_same_bits(made, data, tmp_path):
    own = importlib.import_module("joma.experiments._suite_hf")
    short = replace(TINY, steps=2)
    own.written(short, 0, tmp_path / "suite", tmp_path / "work")
    (tmp_path / "suite" / "step2").rename(tmp_path / "gone")
    own.written(TINY, 0, tmp_path / "suite", tmp_path / "work")
    assert (tmp_path / "suite" / "step2").is_dir()
    whole, again = (sources.open(str(p)) for p in (made[0] / "owner" / "suite", tmp_path / "suite"))
    names = whole.index("step4").tensors
    for name, tensor in whole.read("step4", names).items():
        assert torch.equal(tensor, again.read("step4", names)[name])


def test_through_the_hub_the_same_numbers_come_out(made, data, tmp_path):
    """Real clients in their own process: they read HF_ENDPOINT when they are imported."""
    text = _suite.held_out(16, 2)
    local = _suite.swept(
        sources.open(str(made[0] / "owner" / "suite")), ("entropy", "rank"), tmp_path / "a", text
    )
    code = (
        "import sys, json; from pathlib import Path; from joma import sources;"
        "from joma.experiments import _suite;"
        "t = _suite.swept(sources.open('hub:owner/suite@step*'), ('entropy', 'rank'),"
        " Path(sys.argv[1]), _suite.held_out(16, 2));"
        "print(json.dumps(sorted(zip(*(t[c].to_pylist() for c in ('metric', 'step', 'value'))))))"
    )
    with Hub(made[0]) as hub:
        more = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "b")],
            env=os.environ | more, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert hub.log.requests
    here = sorted(zip(*(local[c].to_pylist() for c in ("metric", "step", "value")), strict=True))
    assert [list(row) for row in here] == json.loads(done.stdout)


def test_quiet_puts_logging_back(made):
    before = logging.root.manager.disable
    with importlib.import_module("joma.experiments._suite_hf").quiet():
        assert logging.root.manager.disable == logging.WARNING
    assert logging.root.manager.disable == before


def test_random_drift_goes_as_far_and_starts_where_the_suite_starts(made):
    source = sources.open(str(made[0] / "owner" / "suite"))
    table = _suite.drifted(source, [rank.PROBE], 0)
    found = Evidence(_named(table)).part(layer=0).curve("stable_rank", arm=DRIFT, seed=0)
    weight = source.read("step0", ["gpt_neox.layers.0.mlp.dense_h_to_4h.weight"])
    assert found.values[0] == pytest.approx(rank.stable_rank(*weight.values()).value)
    assert set(table["kind"].to_pylist()) == {"control"}


def _named(table):
    field = table.schema.field("run")
    runs = pa.array([f"fig7/{run}" for run in table["run"].to_pylist()])
    return table.set_column(0, field, runs.cast(field.type))


def test_two_training_runs_at_once_are_refused(tmp_path):
    states = {n: {"w": torch.eye(2)} for n in ("seed_0-step_1", "seed_1-step_1")}
    with pytest.raises(JomaError, match="2 training runs"):
        _suite.swept(MemorySource(states), ("rank",), tmp_path)


@pytest.mark.parametrize(
    ("own", "drift", "verdict"),
    [
        ([[10, 7, 7], [10, 6, 7]], [FLAT, FLAT], Verdict.HOLDS),
        ([[10, 7, 7], [10, 9, 9]], [FLAT, FLAT], Verdict.FAILS),
        ([[10, 7, 7], [10, 6, 7]], [FLAT, [10, 7, 7]], Verdict.NOT_DISTINGUISHABLE),
    ],
)
def test_a_drop_in_every_layer_is_needed_and_drift_must_not_have_it(own, drift, verdict):
    evidence = ranks(**{SUITE: own, DRIFT: drift})
    assert fig7.rank_drops(evidence).verdict is verdict


@pytest.mark.parametrize(
    ("own", "drift", "verdict"),
    [
        ([[10, 7, 7], [10, 6, 7]], [FLAT, FLAT], Verdict.HOLDS),
        ([[10, 7, 8], [10, 6, 7]], [FLAT, FLAT], Verdict.FAILS),  # the bottom bounces as well
        ([[10, 7, 7], [10, 9, 10]], [FLAT, FLAT], Verdict.FAILS),  # the top never dropped
        ([[10, 7, 7], [10, 6, 7]], [FLAT, [10, 9, 10]], Verdict.NOT_DISTINGUISHABLE),
    ],
)
def test_only_the_top_layer_may_bounce(own, drift, verdict):
    evidence = ranks(**{SUITE: own, DRIFT: drift})
    assert fig7.top_bounces(evidence).verdict is verdict


def test_entropy_must_come_back_as_far_as_the_rule_says():
    for end, verdict in ((2.2, Verdict.HOLDS), (2.05, Verdict.FAILS)):
        evidence = lines("attention_entropy", of={(SUITE, 0): [2.5, 2.0, end]})
        assert fig7.entropy_bounces(evidence).verdict is verdict


def test_the_figure_has_entropy_and_rank_by_layer_with_bounds(made, data, tmp_path):
    where = str(made[0] / "owner" / "suite")
    config = fig7.Config(source=where, suite=TINY, length=16, sequences=2)
    tables = [_named(t) for t in fig7.run(config, 0, tmp_path)]
    evidence = Evidence(pa.concat_tables(tables).unify_dictionaries())
    entropy, ranked = _figure.panels(fig7.EXPERIMENT, evidence)
    assert [line.label for line in entropy.lines] == ["layer 0", "layer 1"]
    for panel in (entropy, ranked):
        for line in panel.lines:
            assert (line.low <= line.y).all() and (line.y <= line.high).all()
            assert line.x.tolist() == [0, 1, 2, 4]
    assert entropy.references[0].low > entropy.lines[0].y.max()


def test_layers_are_thinned_out_with_both_ends_kept():
    assert _suite.some(range(3)) == [0, 1, 2]
    assert _suite.some(range(12)) == [0, 2, 4, 7, 9, 11]


def test_revisions_are_powers_of_two_and_then_regular():
    assert Suite(steps=100, every=40).revisions == (0, 1, 2, 4, 8, 16, 32, 40, 64, 80, 100)


def test_the_example_trains_a_suite(root, data, tmp_path):
    words = [
        sys.executable, str(root / "examples" / "train_suite.py"), "small", "--steps", "2",
        "--layers", "2", "--embed", "32", "--heads", "2", "--hidden", "64", "--vocab", "300",
    ]  # fmt: skip
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3 revisions in small; loss")

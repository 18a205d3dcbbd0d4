"""Kept records say what the run said, and nothing of the machine they were made on."""

import json

import pytest

from joma._core.errors import JomaError
from joma.cli.keep import keep
from joma.experiments import _kept, _runner, registry


@pytest.fixture
def made(tmp_path):
    _runner.run("thm2", registry.load("thm2"), seeds=2, out=tmp_path / "runs")
    keep("thm2", out=tmp_path / "runs", to=tmp_path / "results")
    return tmp_path


def test_a_kept_file_decides_what_the_run_decides(made):
    thm2 = registry.load("thm2")
    run, kept = (_runner.check("thm2", thm2, out=made / name) for name in ("runs", "results"))
    assert [(c.name, f) for c, f in run] == [(c.name, f) for c, f in kept]
    assert _runner.presets_run("thm2", thm2, made / "results") == ["ci"]


def test_it_holds_the_provenance_of_each_seed_without_folders(made):
    noted = _kept.provenance(made / "results" / "thm2" / "ci" / "v1.parquet")
    assert [p["seed"] for p in noted] == [0, 1]
    assert str(made) not in json.dumps(noted)


def test_folders_are_left_out_of_a_command():
    noted = {"command": ["/a/joma", "run", "thm2", "--out", "/b", "--seeds", "2"]}
    assert _kept._portable(noted)["command"] == ["joma", "run", "thm2", "--seeds", "2"]


def test_without_records_it_says_how_to_get_them(tmp_path):
    with pytest.raises(JomaError, match="Run it first: joma run thm2"):
        keep("thm2", out=tmp_path, to=tmp_path)

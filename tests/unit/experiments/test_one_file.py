"""Adding an experiment is one file: it is listed, run, checked and in the ledger."""

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from joma._core.errors import JomaError
from joma.cli.check import check
from joma.cli.ls import ls
from joma.cli.run import run
from joma.cli.show import show
from joma.experiments import _ledger, registry

FILE = """
from joma.experiments.base import Claim, Experiment, Finding, PaperRef, Verdict, records

def run(config, seed):
    yield records("coin", seed, metric="heads", step=[0.0], value=[config["heads"]])

def decide(evidence):
    heads = [c.values[0] for c in evidence.curves("heads", arm="coin")]
    return Finding.over_seeds(Verdict.of(effect=min(heads) > 0, control=True), {"heads": heads})

EXPERIMENT = Experiment(
    title="A coin shows heads.",
    paper=PaperRef(item="Table 9"),
    version=1,
    presets={"ci": {"heads": 1.0}, "paper": {"heads": 2.0}},
    run=run,
    seeds=2,
    cost="nothing",
    claims=(
        Claim(name="heads", says="Heads.", control="another coin", rule="heads > 0", decide=decide),
    ),
    deviations=("A toy coin.",),
)
"""


@pytest.fixture
def guest(tmp_path, monkeypatch):
    """Another package that brings one experiment, `coin`, and no other edit."""
    (tmp_path / "guest_lab.py").write_text(FILE)
    info = tmp_path / "guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[joma.experiments]\ncoin = guest_lab:EXPERIMENT\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("guest_lab", None)


@pytest.fixture
def joma():
    app = typer.Typer()
    for verb in (ls, run, check, show):
        app.command()(verb)

    def call(*words):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "200"}, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


def test_a_new_file_is_listed_run_checked_and_in_the_ledger(guest, joma):
    assert "coin" in joma("ls", "experiments").splitlines()
    assert "not run yet" in _verdicts(joma)["coin"]
    assert "coin/ci/v1" in joma("run", "coin", "--seeds", "3")
    (row,) = json.loads(joma("check", "coin", "--json"))
    assert row["verdict"] == "not distinguishable from control"
    assert (row["seeds"], row["numbers"], row["spread"]) == (3, {"heads": 1}, {"heads": [1, 1]})
    assert row["command"] == "joma run coin --preset ci && joma check coin --preset ci"
    assert _verdicts(joma)["coin"] == ["not distinguishable from control"]


def _verdicts(joma):
    found = {}
    for row in json.loads(joma("check", "--all", "--json")):
        found.setdefault(row["experiment"], []).append(row["verdict"])
    return found


def test_the_largest_preset_is_checked_unless_one_is_named(guest, joma):
    joma("run", "coin")
    joma("run", "coin", "--preset", "paper")
    assert json.loads(joma("check", "coin", "--json"))[0]["numbers"] == {"heads": 2}
    small = json.loads(joma("check", "coin", "--preset", "ci", "--json"))
    assert small[0]["numbers"] == {"heads": 1}


def test_a_folder_can_be_checked(guest, joma):
    joma("run", "coin", "--out", "elsewhere")
    rows = json.loads(joma("check", "elsewhere", "--json"))
    assert [r["seeds"] for r in rows if r["experiment"] == "coin"] == [2]


def test_show_says_what_when_and_against_what(guest, joma):
    text = joma("show", "coin")
    for part in ("A coin shows heads.", "Table 9", "heads > 0", "another coin", "A toy coin."):
        assert part in text
    assert json.loads(joma("show", "coin", "--json"))["claims"][0]["rule"] == "heads > 0"


def test_the_ledger_prints_every_claim_with_its_control(guest, joma):
    joma("run", "coin")
    text = joma("check", "--all")
    assert "coin: heads" in text
    assert "not distinguishable" in text
    assert "not run yet" in text
    assert "another coin" in text


def test_what_has_not_been_run_says_how_to(guest, joma):
    with pytest.raises(JomaError, match="Run it first: joma run coin --out joma-runs"):
        joma("check", "coin")
    with pytest.raises(JomaError, match="Say what to check"):
        joma("check")
    with pytest.raises(LookupError, match="Did you mean 'coin'"):
        joma("run", "coins")


def test_all_means_every_experiment(guest, joma, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["coin"])
    assert joma("run", "all").startswith("coin: ")


def test_the_ledger_becomes_a_page(tmp_path):
    lines = _ledger.markdown(_ledger.rows(tmp_path)).splitlines()
    assert len(lines) == 2 + len(_ledger.rows(tmp_path))
    assert all(line.replace("\\|", "").count("|") == 6 for line in lines)

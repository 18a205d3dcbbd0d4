"""`joma sweep` as a person meets it: lines, JSON, exit codes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from joma._core.errors import JomaError
from joma.cli.audit import audit
from joma.cli.plan import plan
from joma.cli.sweep import sweep
from joma.records.store import load
from unit.sweep.suites import revision_names, save, trajectory


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    states = dict(zip([*revision_names(10), "main"], trajectory(11, layers=2), strict=True))
    return str(save(tmp_path_factory.mktemp("cli") / "suite", states))


@pytest.fixture
def call():
    app = typer.Typer()
    for verb in (plan, sweep, audit):
        app.command()(verb)

    def called(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        if isinstance(result.exception, JomaError):
            raise result.exception
        return result

    return called


def test_a_sweep_is_done_once_and_says_what_was_left_out(call, suite, tmp_path):
    words = ("sweep", suite, "--probe", "rank, coherence", "--out", tmp_path / "out")
    first = call(*words)
    assert first.exit_code == 0
    assert "4 tasks done now" in first.stdout
    assert "'main' states neither a step nor a token count" in first.stderr
    assert load(tmp_path / "out").metrics() == [
        "effective_rank",
        "mlp_coherence",
        "mlp_coherence_excluded",
        "mlp_coherence_floor",
        "stable_rank",
    ]
    again = json.loads(call(*words, "--json").stdout)
    assert again["tasks_done"] == 0
    assert again["left_out"] == ["main"]
    assert again["bytes"] == 0


def test_an_unknown_engine_suggests_the_right_one(call, suite, tmp_path):
    with pytest.raises(JomaError, match="Did you mean 'serial'"):
        call("sweep", suite, "--engine", "serail", "--out", tmp_path)


def test_a_text_that_is_not_there_is_a_sentence(call, suite, tmp_path):
    with pytest.raises(JomaError, match="cannot be read as a text"):
        call("sweep", suite, "--out", tmp_path, "--probe", "entropy", "--text", tmp_path / "no")


def test_a_plan_tells_bytes_requests_time_and_cost(call, suite, tmp_path):
    found = json.loads(call("plan", suite, "--probe", "rank", "--json").stdout)
    assert found["revisions"] == 10
    assert found["tasks"] == 2
    assert found["tensors"] == 20
    assert found["bytes"] == 10 * 2 * 128 * 32 * 4
    assert [row["workers"] for row in found["estimates"]] == [1, 2, 8, 64]
    call("sweep", suite, "--probe", "rank", "--out", tmp_path / "out")
    rest = call("plan", suite, "--probe", "rank", "--out", tmp_path / "out").stdout
    assert "10 revisions, 0 tasks to do" in rest


def test_a_plan_can_time_this_machine(call, suite):
    words = ("plan", suite, "--probe", "rank", "--workers", 2, "--measure")
    found = json.loads(call(*words, "--json").stdout)
    assert found["estimates"][0]["measured_seconds"] > 0
    assert "at the pace of this machine" in call(*words).stdout


def test_an_audit_that_finds_something_exits_with_1_and_says_what(call, tmp_path):
    states = dict(zip([*revision_names(10), "best"], trajectory(11, layers=2), strict=True))
    suite = str(save(tmp_path / "suite", states))
    result = call("audit", suite)
    assert result.exit_code == 1
    assert "name without a step" in result.stdout
    assert "probability" in result.stdout
    found = json.loads(call("audit", suite, "--json").stdout)
    assert [f["defect"] for f in found["findings"]] == ["name without a step"]
    assert found["detection_probability_of_one_tensor"] == pytest.approx(2 / 9)


def test_an_audit_that_finds_nothing_exits_with_0(call, suite):
    result = call("audit", f"{suite}@step*", "--sample", 2)
    assert result.exit_code == 0
    assert "Nothing wrong in 10 revisions" in result.stdout
    result = call("audit", suite)
    assert result.exit_code == 0 and "Not looked at: main." in result.stdout

"""`joma doctor`: it says what is here, and notices a kernel that is wrong."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from joma.cli import _selftest, doctor as verb
from joma.metrics import _attention


def call(*words):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(verb.doctor)
    return CliRunner().invoke(app, list(words))


def test_kernels_are_right_here_and_their_errors_are_printed():
    found = json.loads(call("--json").stdout)
    assert found["healthy"]
    errors = {one["kernel"]: one["error"] for one in found["selftest"]}
    assert 0 <= errors["stable rank"] < 1e-3  # its default rtol
    assert 0 < errors["attention entropy"] < _attention.ROUNDING
    assert "error 0" not in call().stdout


def test_a_wrong_kernel_is_an_exit_code(monkeypatch):
    right = _selftest.attention_entropy
    monkeypatch.setattr(_selftest, "attention_entropy", lambda *a, **k: right(*a, **k) + 1e-3)
    result = call()
    assert result.exit_code == 1
    assert "WRONG  attention entropy" in result.stdout


def test_an_undefined_error_does_not_pass():
    trial = _selftest.Trial(kernel="k", against="a", error=float("nan"), bar=1.0, seconds=0.0)
    assert not trial.passed
    assert verb._trial(trial)["error"] is None


def test_every_extra_of_the_package_is_listed_once_with_its_version():
    found = json.loads(call("--json").stdout)["extras"]
    pairs = [(one["extra"], one["package"]) for one in found]
    assert len(set(pairs)) == len(pairs)
    assert {"hf", "hub", "lightning", "pandas", "plot", "ray", "report", "track"} <= {
        extra for extra, _ in pairs
    }


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(verb, "_version", lambda package: None)
    assert "missing: pip install 'joma[ray]'" in call().stdout


def test_paths_are_those_the_metrics_take_and_a_gpu_is_said_to_be_untested():
    found = json.loads(call("--json").stdout)["attention"]
    assert [one["path"] for one in found] == ["fused", "tiles", "tiles", "tiles"]
    assert found[-1]["note"] == "untested on GPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here")
def test_a_machine_without_a_gpu_lists_none():
    assert not any("cuda" in one.name for one in _selftest.devices())


def test_where_the_data_is_looked_for_is_said_when_it_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("JOMA_DATA", str(tmp_path))
    monkeypatch.setenv("JOMA_SHARED", str(tmp_path))
    result = call()
    assert result.exit_code == 0
    assert "Set JOMA_DATA to the folder" in result.stdout
    (tmp_path / "wikitext-2").mkdir()
    assert json.loads(call("--json").stdout)["data"]["folder"] == str(tmp_path / "wikitext-2")

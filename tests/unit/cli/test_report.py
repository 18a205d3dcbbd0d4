"""`joma report` on stores of every kind, through the command as it is registered here."""

import json

import pytest
import typer
from typer.testing import CliRunner

from browser.material import run
from joma._core.errors import JomaError
from joma.cli.report import report
from joma.experiments import _runner, registry
from joma.records.store import Store

pytest.importorskip("plotly")


def call(*words):
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_page_of_a_run_is_written_and_named(tmp_path):
    Store(tmp_path / "records").append(run())
    result = call(tmp_path / "records", "-o", tmp_path / "new" / "page.html", "--json")
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert told["bytes"] == (tmp_path / "new" / "page.html").stat().st_size < 6_000_000
    assert told["stores"] == [str(tmp_path / "records")]


def test_an_experiment_comes_with_its_claims_and_figure(tmp_path):
    _runner.run("fig4", registry.load("fig4"), seeds=1, out=tmp_path / "joma-runs")
    result = call(tmp_path / "joma-runs", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.exception
    text = (tmp_path / "page.html").read_text()
    assert "Claims, decided from these records" in text
    assert "Figures of the experiments" in text
    for claim in registry.load("fig4").claims:
        assert claim.name in text


def test_records_of_another_version_are_not_judged(tmp_path):
    Store(tmp_path / "fig4" / "ci" / "v999").append(run("fig4/a/seed0"))
    call(tmp_path, "-o", tmp_path / "page.html")
    assert "Nothing was decided" in (tmp_path / "page.html").read_text()


def test_figures_for_papers(tmp_path):
    pytest.importorskip("matplotlib")
    Store(tmp_path / "records").append(run(steps=5))
    result = call(
        tmp_path / "records",
        "-o",
        tmp_path / "p.html",
        "--png",
        tmp_path / "a",
        "--pdf",
        tmp_path / "b",
    )
    assert result.exit_code == 0, result.exception
    assert (tmp_path / "a" / "0-0-curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "b" / "0-0-curves.pdf").read_bytes().startswith(b"%PDF")


def test_a_folder_without_records_is_a_sentence(tmp_path):
    result = call(tmp_path)
    assert isinstance(result.exception, JomaError)
    assert "joma-records" in str(result.exception)

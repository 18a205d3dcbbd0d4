"""The front door as a person meets it: real processes, real exit codes."""

import json
import subprocess
import sys
import time

import pytest

import joma


def call(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "joma", *words], capture_output=True, text=True, check=False
    )


def test_version():
    assert call("--version").stdout.strip() == f"joma {joma.__version__}"


def test_ls_shows_every_room():
    out = call("ls").stdout
    assert "theory" in out
    assert "linear" in out


def test_ls_of_one_room_prints_one_name_a_line():
    assert "linear" in call("ls", "theory").stdout.splitlines()


def test_ls_of_engines_imports_none_of_them():
    result = call("ls", "engines")
    assert result.returncode == 0
    assert result.stdout.split() == ["process", "ray", "serial"]


def test_ls_json():
    assert "records" in json.loads(call("ls", "bench", "--json").stdout)


def test_a_wrong_room_suggests_the_right_one():
    result = call("ls", "metric")
    assert result.returncode == 2
    assert "Did you mean 'metrics'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_bench_suggests_the_right_one():
    result = call("bench", "record")
    assert result.returncode == 2
    assert "Did you mean 'records'?" in result.stderr


def test_errata_json_lists_all_with_numbers_within_a_minute():
    start = time.perf_counter()
    result = call("errata", "--json")
    assert time.perf_counter() - start < 60
    assert result.returncode == 0, result.stderr
    listed = json.loads(result.stdout)
    assert len(listed) >= 14
    for erratum in listed:
        assert erratum["settled"], erratum
        for e in erratum["evidence"]:
            assert isinstance(e["truth"], float)


def test_errata_table_of_one():
    out = call("errata", "2").stdout
    assert "Theorem 2" in out
    assert "E10" not in out


def test_an_unknown_erratum_is_a_sentence():
    result = call("errata", "99")
    assert result.returncode == 2
    assert "No erratum numbered 99" in result.stderr


@pytest.mark.parametrize("verb", ["ls", "show", "run", "check", "plot", "errata", "bench"])
def test_help_has_an_example(verb):
    assert f"joma {verb}" in call(verb, "--help").stdout


def test_an_experiment_is_run_checked_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    out = ("--out", str(tmp_path))
    assert "Run it first: joma run thm2" in call("plot", "thm2", *out).stderr
    assert call("run", "thm2", "--seeds", "2", *out).returncode == 0
    verdicts = json.loads(call("check", "thm2", "--json", *out).stdout)
    assert {v["verdict"] for v in verdicts} >= {"holds", "fails"}
    assert call("plot", "thm2", *out, "--to", str(tmp_path / "thm2.svg")).returncode == 0
    assert (tmp_path / "thm2.svg").is_file()

"""Provenance: written once beside the rows, complete, and without secrets."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joma._core.errors import DamagedPartWarning
from joma.records import provenance
from joma.records.store import Store


@dataclass(frozen=True)
class Config:
    hidden: int = 10
    rate: float = 0.1
    path: Path = Path("data")
    api_key: str = "abc"


def test_it_says_what_is_needed_to_run_again():
    found = provenance.collect(
        config=Config(), seed=3, command=["/home/me/bin/joma", "run", "--token", "abc", "fig4"]
    )
    assert found["config"] == {
        "hidden": 10,
        "rate": 0.1,
        "path": "data",
        "api_key": "[redacted]",
    }
    assert found["seed"] == 3
    assert found["command"] == ["joma", "run", "--token", "[redacted]", "fig4"]
    assert found["versions"]["pyarrow"] == pa.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert json.loads(json.dumps(found)) == found


def test_the_command_line_of_this_process_is_the_default():
    assert provenance.collect()["command"][0] == Path(sys.argv[0]).name


@pytest.fixture
def repository(tmp_path):
    def git(*words):
        who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    git("tag", "v1")
    return tmp_path, git("rev-parse", "HEAD")


def test_the_commit_is_noted_and_whether_files_differ(repository):
    folder, commit = repository
    assert provenance.collect(directory=folder)["commit"] == commit
    (folder / "file").write_text("2")
    assert provenance.collect(directory=folder)["commit"] == f"{commit}-dirty"


def test_without_a_work_tree_or_git_there_is_no_commit(tmp_path, monkeypatch):
    assert provenance.collect(directory=tmp_path)["commit"] is None
    monkeypatch.setenv("PATH", "")
    assert provenance.collect(directory=tmp_path)["commit"] is None


def test_it_imports_nothing_heavy():
    code = (
        "import sys; from joma.records import provenance\n"
        "assert 'torch' in provenance.collect()['versions']\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_values_that_json_cannot_say_are_written_as_printed():
    assert provenance.plain(
        {1: float("nan"), "a": np.float64(2), "b": np.arange(2), "c": {3, 1}, "d": Path("x")}
    ) == {"1": "nan", "a": 2.0, "b": [0, 1], "c": [1, 3], "d": "x"}


def test_equal_content_is_written_once_and_every_part_names_it(tmp_path, rows):
    for _ in range(2):
        Store(tmp_path, provenance={"seed": 1, "config": {"a": 1, "b": 2}}).append(rows())
        Store(tmp_path, provenance={"config": {"b": 2, "a": 1}, "seed": 1}).append(rows())
    store = Store(tmp_path, provenance={"seed": 2})
    store.append(rows())
    Store(tmp_path).append(rows())
    found = store.provenance()
    assert sorted(p["seed"] for p in found.values()) == [1, 2]
    named = [tuple(p.header.provenance) for p in store.parts()]
    assert [found[p[0]]["seed"] if p else None for p in named] == [1, 1, 1, 1, 2, None]


def test_secrets_in_a_provenance_made_by_hand_do_not_reach_the_disk(tmp_path, rows):
    Store(tmp_path, provenance={"env": {"HF_TOKEN": "hush"}, "argv": ["--token", "hush"]}).append(
        rows()
    )
    assert not [p for p in tmp_path.rglob("*.json") if "hush" in p.read_text()]


def test_a_damaged_provenance_is_named_and_left_out(tmp_path, rows):
    store = Store(tmp_path, provenance={"seed": 1})
    store.append(rows())
    [path] = tmp_path.rglob("*.json")
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.warns(DamagedPartWarning, match=path.name):
        assert store.provenance() == {}
    assert store.read().num_rows == 4

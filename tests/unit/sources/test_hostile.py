"""Hostile files are refused with a sentence: none runs, hangs or fills memory."""

import json
import subprocess
import sys

import pytest

from joma.sources._errors import SourceError
from joma.sources._names import parse
from joma.sources.local import LocalSource
from unit.sources.hostile import opened
from unit.sources.hostile_headers import MARKUP, PATHS

SECONDS = 5  # of CPU time, for any one file
BYTES = 10**9


@pytest.mark.parametrize("cases", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_files_are_all_refused(root, tmp_path, cases):
    done = subprocess.run(
        [sys.executable, "-m", "unit.sources.hostile", str(cases), "0"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root / "tests"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert sum(found["kinds"].values()) == cases
    assert found["accepted"] == [] and found["odd"] == [] and found["ran"] == []
    assert found["slowest"][1] < SECONDS and found["grown"] < BYTES, found["slowest"]
    assert list(tmp_path.iterdir()) == []  # a canary would lie here


@pytest.fixture
def corpus(root):
    return sorted((root / "tests/unit/sources/corpus").iterdir())


def test_every_file_of_the_kept_corpus_is_refused(corpus):
    assert len(corpus) >= 30
    for path in corpus:
        if path.suffix == ".json":
            files = {"model.safetensors.index.json": path.read_bytes()}
        else:
            stem = "model" if path.suffix == ".safetensors" else "pytorch_model"
            files = {f"{stem}{path.suffix}": path.read_bytes()}
        with pytest.raises(SourceError) as caught:
            opened(files)
        assert "<script>" not in str(caught.value).replace(repr("<script>alert(1)</script>"), "")
        assert "\x1b" not in str(caught.value), path.name


@pytest.mark.parametrize("name", [*PATHS, *MARKUP])
def test_a_dangerous_name_of_a_revision_is_reported_and_never_opened(tmp_path, name):
    (tmp_path / "step1").mkdir()
    assert parse(name).problem is not None
    assert "\x1b" not in parse(name).problem
    with pytest.raises(SourceError):
        LocalSource(tmp_path).index(name)

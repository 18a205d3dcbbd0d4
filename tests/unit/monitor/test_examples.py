"""Every example runs as a user would run it, with fewer steps."""

import subprocess
import sys
from pathlib import Path

import pytest

from joma.records.store import Store

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
STEPS = 41


@pytest.mark.hf
@pytest.mark.parametrize(
    ("name", "package", "records"),
    [
        ("plain_loop", "torch", "joma-records"),
        ("hf_trainer", "transformers", "hf-trainer/joma-records"),
        ("lightning_loop", "lightning", "lightning-loop/joma-records"),
    ],
)
def test_an_example_trains_writes_records_and_prints_a_verdict(name, package, records, tmp_path):
    pytest.importorskip(package)
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", str(STEPS)]
    out = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert "no warning (last look at step 40)" in out.stdout.splitlines()[-1]
    store = Store(tmp_path / records)
    entropy = store.read(metric="attention_entropy")
    assert set(entropy["step"].to_pylist()) == {0, 20, 40}
    assert set(entropy["layer"].to_pylist()) == {0, 1}
    losses = store.read(metric="loss")["value"].to_pylist()
    assert len(losses) == STEPS and losses[-1] < losses[0]

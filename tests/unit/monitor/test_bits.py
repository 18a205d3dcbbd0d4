"""A run that is watched is, bit for bit, the run that is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unit.monitor.training import CASES, COMPILED

pytestmark = pytest.mark.hf

WORKER = Path(__file__).with_name("training.py")
SHORT, LONG = 24, 200


def trained(steps: int, *names: str) -> dict:
    command = [sys.executable, "-W", "ignore", str(WORKER), str(steps), *names]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def short():
    return trained(SHORT, *CASES, "control")


@pytest.mark.parametrize("name", CASES)
def test_a_watched_run_is_bit_identical(short, name):
    assert short[name]["same"]


@pytest.mark.parametrize("name", CASES)
def test_what_was_bit_identical_was_watched(short, name):
    assert short[name]["observed"] >= (2 if "budget" in name else SHORT // 4)
    layers = {n for n in short[name]["metrics"] if "attention_entropy" in n}
    assert layers == {f"joma/attention_entropy/layer_0{n}" for n in (0, 1)}


def test_a_number_drawn_behind_our_back_shows(short):
    assert not short["control"]["same"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *COMPILED])
def test_two_hundred_watched_steps_are_bit_identical(name):
    found = trained(LONG, name)[name]
    assert found["same"]
    assert any("attention_entropy/layer_01" in n for n in found["metrics"])

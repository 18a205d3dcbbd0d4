"""`joma demo`: what it prints is true of the runs it made."""

import subprocess
import sys
import time

import pytest

from joma._core.errors import JomaError
from joma.analysis.curves import curves, shape
from joma.analysis.diagnosis import diagnose, facts_of
from joma.cli.demo import demo
from joma.records.store import load

pytest.importorskip("plotly")

SECONDS = 60  # of processor time; alone on a machine it is wall time as well


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    code = (
        "import socket, time, typer\n"
        "def refuse(*_, **__): raise OSError('no network')\n"
        "socket.socket.connect = refuse\n"
        "from joma.cli.demo import demo\n"
        "try: typer.run(demo)\n"
        "finally: print('CPU', time.process_time())"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, time.perf_counter() - start


def test_it_ends_within_a_minute_without_a_network(made):
    assert float(made[1].rsplit("CPU", 1)[1]) < SECONDS


def test_one_model_dies_and_the_other_learns(made):
    store = load(made[0] / "joma-demo-records")
    found = {d.run: d.verdict for d in reversed(diagnose(store.read(), facts_of(store)))}
    assert found["lm/learning_rate_0.03"].alarm
    assert not found["lm/learning_rate_0.003"].alarm
    for run, verdict in found.items():
        assert f"{run}: {verdict.value}." in made[1]


def test_a_bounce_is_claimed_exactly_where_there_is_one(made):
    store = load(made[0] / "joma-demo-records")
    entropies = curves(store.read(), ("attention_entropy", "node_entropy"))
    bounces = [shape(c.steps, c.values).bounce >= 0.1 for c in entropies]
    assert made[1].count("a dip, of which") == sum(bounces)
    assert any(bounces)


def test_the_invariant_is_shown_and_drawn_beside_the_theory(made):
    assert "Theorem 1 in layer/exp_attention" in made[1]
    text = (made[0] / "joma-demo.html").read_text()
    assert len(text.encode()) < 6_000_000
    assert "theory, a model" in text
    assert "attention collapsing" in text


def test_it_does_not_write_over_what_is_there(made):
    with pytest.raises(JomaError, match="is there already"):
        demo(made[0])

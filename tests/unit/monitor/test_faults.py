"""Whatever goes wrong in the monitor, training goes on, and what was lost is said."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from joma.metrics.entropy import AttentionEntropyProbe
from joma.monitor import courier, desk
from joma.monitor.monitor import DEFAULT, Monitor
from joma.monitor.sinks.base import AbstractSink
from joma.probes.base import AbstractWeightProbe, Need
from joma.records.store import Store
from unit.monitor.training import VOCAB, small

WORKER = Path(__file__).with_name("fault_worker.py")


def steps(model, monitor, count):
    """Train for some steps; what the monitor does must not raise here."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        loss = model(torch.arange(12).view(2, 6) % VOCAB).logsumexp(-1).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        monitor.step(loss=loss, lr=0.1)


class Raises(AttentionEntropyProbe):
    def observe(self, seen):
        raise ValueError("cannot look at this")


class RaisesOnReading(AttentionEntropyProbe):
    def readings(self, place, sums):
        raise ValueError("cannot read this")


class RaisesOnWeights(AbstractWeightProbe):
    need: ClassVar = Need.MLP_IN

    def measure(self, place, tensors, warm=None):
        raise ValueError("cannot weigh this")


@pytest.mark.parametrize("broken", [Raises(), RaisesOnReading(), RaisesOnWeights()])
def test_a_probe_that_raises_is_said_once_and_left_out_after_three(broken, tmp_path, caplog):
    with Monitor(small(), [*DEFAULT, broken], 1, out=tmp_path) as monitor:
        steps(monitor._model, monitor, 7)
    name = type(broken).__name__
    said = [line for line in caplog.messages if name in line]
    assert len(said) == 2
    assert "ValueError: cannot" in said[0]
    assert said[1] == f"{name} failed 3 times: it is left out from now on."
    assert "joma/attention_entropy/layer_01" in monitor.metrics()


def test_without_a_probe_left_the_loss_is_still_recorded(tmp_path, caplog):
    with Monitor(small(), [Raises()], 1, out=tmp_path, run="a") as monitor:
        steps(monitor._model, monitor, 6)
    assert "No probe is left" in caplog.text
    assert Store(tmp_path).read(run="a", metric="loss")["step"].to_pylist() == [1, 2, 3, 4, 5, 6]


class Hangs(AbstractSink):
    def __init__(self):
        self.free = threading.Event()

    def log(self, entry):
        self.free.wait(60)


def test_a_sink_that_hangs_holds_up_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(courier, "LIMIT", 3)
    monkeypatch.setattr(desk, "GRACE", 0.5)
    sink = Hangs()
    monitor = Monitor(small(), every=1, out=tmp_path, run="a", sinks=[sink])
    start = time.perf_counter()
    steps(monitor._model, monitor, 9)
    monitor.close()
    assert time.perf_counter() - start < 30
    sink.free.set()
    assert "Sink Hangs-0 hangs, and is left behind." in caplog.text
    assert "entries dropped" in caplog.text  # ten observations, one in hand, three may wait
    observed = Store(tmp_path).read(run="a", metric="attention_entropy")
    assert set(observed["step"].to_pylist()) == set(range(10))


class Fails(AbstractSink):
    def log(self, entry):
        raise OSError("the network is down")


def test_a_sink_that_fails_is_said_once_and_counted(tmp_path, caplog):
    with Monitor(small(), every=1, out=tmp_path, sinks=[Fails()]) as monitor:
        steps(monitor._model, monitor, 4)
    said = [line for line in caplog.messages if "network is down" in line]
    assert said == ["Sink Fails-0: OSError: the network is down"]
    assert "Sink Fails-0: 0 entries dropped, 5 errors." in caplog.messages


def test_a_full_disk_is_said_and_training_goes_on(tmp_path, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # no file may grow beyond
    try:
        with Monitor(small(), every=1, out=tmp_path, run="a") as monitor:
            steps(monitor._model, monitor, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "rows of records are lost. Could not write" in caplog.text
    assert monitor.metrics()
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_that_a_full_disk_refused_are_written_when_there_is_room(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Monitor(small(), every=1, out=tmp_path, run="a") as monitor:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
        try:
            steps(monitor._model, monitor, 2)
            monitor.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        steps(monitor._model, monitor, 1)
    steps_seen = Store(tmp_path).read(run="a", metric="loss")["step"].to_pylist()
    assert steps_seen == [1, 2, 3]


class Strange(nn.Module):
    """Of no family: attention by plain SDPA, blocks that may be compiled one by one."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.strange_qkv = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.strange_qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + mixed.transpose(1, 2).flatten(-2)

    def __init__(self, blocks=3, backend=None):
        super().__init__()
        self.words = nn.Embedding(VOCAB, 16)
        made = [self.Block() for _ in range(blocks)]
        self.parts = nn.ModuleList(
            torch.compile(b, backend=backend) if backend else b for b in made
        )

    def forward(self, tokens):
        x = self.words(tokens)
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo
@pytest.mark.parametrize("backend", [None, "eager"])
def test_every_layer_of_an_unknown_family_is_seen_and_what_is_not_is_said(
    backend, tmp_path, caplog
):
    with torch.random.fork_rng(), Monitor(Strange(3, backend), every=1, out=tmp_path) as monitor:
        steps(monitor._model, monitor, 2)
    numbers = monitor.metrics()
    for layer in range(3):
        assert numbers[f"joma/attention_entropy/layer_0{layer}"] > 0
    assert [line for line in caplog.messages if "StableRankProbe cannot see" in line]
    assert not any("stable_rank" in name for name in numbers)


def test_non_finite_activations_are_undefined_readings_and_an_alert(tmp_path):
    heard = []
    model = small(layers=1)
    with Monitor(model, every=1, out=tmp_path, run="a", on_alert=heard.append) as monitor:
        steps(model, monitor, 1)
        model.blocks[0].attention.query.weight.data.fill_(torch.nan)
        steps(model, monitor, 2)
    assert {alert.title for alert in heard} == {"non-finite values"}
    assert heard[0].layer == 0 and heard[0].step == 2
    assert len(heard) == len({alert.text for alert in heard})
    table = Store(tmp_path).read(run="a", metric="attention_entropy", steps=(2, 3))
    assert set(table["status"].to_pylist()) == {"non-finite attention scores"}
    assert all(value != value for value in table["value"].to_pylist())


def test_a_callback_that_raises_is_not_heard_by_training(tmp_path, caplog):
    def judge(step, numbers):
        raise RuntimeError("no opinion")

    with Monitor(small(), every=1, out=tmp_path, judge=judge) as monitor:
        steps(monitor._model, monitor, 3)
    assert caplog.text.count("no opinion") == 1


def test_a_schedule_that_raises_ends_observation_only(tmp_path, caplog):
    def schedule(step):
        return 1 // (2 - step) > 0

    with Monitor(small(), every=schedule, out=tmp_path, run="a") as monitor:
        steps(monitor._model, monitor, 4)
    assert "ZeroDivisionError" in caplog.text
    assert len(Store(tmp_path).read(run="a", metric="loss")) == 4


@pytest.fixture(scope="module")
def worker():
    command = [sys.executable, "-W", "ignore", str(WORKER)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, **pipes) as process:
        yield process


def trained(worker, *arguments, until=None, then=None) -> tuple[list[str], int]:
    """What a child prints, and its wait status; at the line `until` it is sent a signal."""
    worker.stdin.write(json.dumps([str(arguments[0]), *arguments[1:]]) + "\n")
    lines, pid = [], None
    for line in map(str.strip, worker.stdout):
        word, _, number = line.partition(" ")
        if word == "ended":
            return lines, int(number)
        pid = int(number) if word == "child" else pid
        lines.append(line)
        if line == until:
            os.kill(pid, then)
    raise AssertionError(lines)


def test_after_a_kill_nothing_is_recorded_twice(worker, tmp_path):
    trained(worker, tmp_path, 0, 40, None, until="step 30", then=signal.SIGKILL)
    kept = set(Store(tmp_path).read(run="a", metric="loss")["step"].to_pylist())
    assert kept >= set(range(1, 21))  # flushed by the worker at step 20
    # From an older checkpoint, looking at other steps.
    assert trained(worker, tmp_path, 10, 40, None)[1] == 0
    rows = Store(tmp_path).read(run="a").to_pylist()
    keys = [(r["step"], r["metric"], r["layer"], r["head"]) for r in rows]
    assert len(keys) == len(set(keys))
    assert {r["step"] for r in rows if r["metric"] == "loss"} == set(range(1, 41))


@pytest.mark.parametrize("handler", ["default", "python"])
def test_sigterm_writes_what_waits_and_is_passed_on(worker, tmp_path, handler):
    end = {"until": "step 10", "then": signal.SIGTERM}
    lines, status = trained(worker, tmp_path, 0, 40, handler, **end)
    assert ("handled" in lines) is (handler == "python")
    if handler == "default":
        assert os.WTERMSIG(status) == signal.SIGTERM
    else:
        assert os.WEXITSTATUS(status) == 7
    steps_seen = Store(tmp_path).read(run="a", metric="loss")["step"].to_pylist()
    assert set(steps_seen) >= set(range(1, 11))

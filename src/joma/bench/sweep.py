"""A sweep beside a bare loop over the same ranges with the same kernel, and beside its plan.

Variants are interleaved and the least of several rounds is compared: other work on the machine
makes rounds longer, never shorter. The suite has four of the 24 layers of Pythia-410m, so
a task is a sixth of what it is there: with tasks of milliseconds an engine measures itself.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from joma._core.errors import MissingExtraError
from joma.bench._rank import trained_like
from joma.bench._sweep_bare import Piece, loop, ranges
from joma.bench._timing import one_thread
from joma.bench.base import Bench, Row
from joma.sources.local import LocalSource
from joma.sweep.audit import audit
from joma.sweep.cost import makespan, paced
from joma.sweep.plan import REVISIONS, plan
from joma.sweep.run import Outcome, Sweep

LAYERS, EMBED = 4, 1024
_LONG = 3  # loops of a neighbour that last longer than a measurement of the pace
NAME = "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"


def run(*, revisions: int = 64, rounds: int = 3) -> Iterator[Row]:
    """Serial, then Ray with two workers, each beside bare loops; then what the plan said."""
    with tempfile.TemporaryDirectory(prefix="joma-bench-") as name, one_thread():
        folder = Path(name)
        _save(folder / "suite", revisions)
        bare = list(ranges(folder / "suite", [NAME.format(i) for i in range(LAYERS)]).values())
        yield from _serial(folder, bare, rounds)
        yield from _two(folder, bare, rounds)


def _serial(folder: Path, bare: Sequence[Sequence[Piece]], rounds: int) -> Iterator[Row]:
    cpu: dict[str, list[float]] = {"bare": [], "sweep": [], "audit": []}
    wall, said, tasks = [], [], 0
    source = LocalSource(folder / "suite")
    _sweep(folder, "warm-up", "serial")
    for i in range(rounds):
        start = time.thread_time()
        loop(bare, REVISIONS)
        cpu["bare"].append(time.thread_time() - start)
        start, began = time.thread_time(), time.perf_counter()
        tasks = _sweep(folder, f"serial{i}", "serial").done
        cpu["sweep"].append(time.thread_time() - start)
        wall.append(time.perf_counter() - began)
        said.append(_predicted(folder, source, f"serial{i}", 1))
        start = time.thread_time()
        audit(source)
        cpu["audit"].append(time.thread_time() - start)
    least = {what: min(seen) for what, seen in cpu.items()}
    share = 100 * least["bare"] / least["sweep"]
    yield Row("serial sweep, speed of a bare loop (CPU)", share, "%", 85, at_least=True)
    overhead = 1000 * (least["sweep"] - least["bare"]) / tasks
    yield Row(f"serial sweep, overhead per task ({tasks} tasks, CPU)", overhead, "ms")
    yield Row("audit, cost of a plain sweep (CPU)", least["audit"] / least["sweep"], "x", 1.2)
    yield from _forecast("1 worker (serial)", said, wall)


def _two(folder: Path, bare: Sequence[Sequence[Piece]], rounds: int) -> Iterator[Row]:
    """Two bare processes, the process engine and Ray, round by round."""
    halves = [[p for i, p in enumerate(bare) if i // REVISIONS % 2 == k] for k in (0, 1)]
    wall: dict[str, list[float]] = {"bare": [], "process": [], "ray": []}
    said: list[float] = []
    busy: dict[str, list[float]] = {"process": [], "ray": []}
    source, engines = LocalSource(folder / "suite"), ["process", *_ray()]
    tasks = 0
    with _children(halves) as children, _cluster("ray" in engines):
        for engine in engines:
            _sweep(folder, f"{engine}-warm-up", engine)
        for i in range(rounds):
            wall["bare"].append(_together(children))
            for engine in engines:
                start = time.perf_counter()
                done = _sweep(folder, f"{engine}{i}", engine)
                wall[engine].append(time.perf_counter() - start)
                busy[engine].append(done.cost.reading + done.cost.measuring)
                tasks = done.done
            for _ in range(_LONG):  # the pace of one worker while another one works
                _go(children[:1])
            said.append(_predicted(folder, source, f"{engines[-1]}{i}", 2))
            for _ in range(_LONG):
                _ended(children[:1])
    least = {what: min(seen) for what, seen in wall.items() if seen}
    yield Row("two bare processes", least["bare"], "s")
    yield Row("process engine, 2 workers, start included", least["process"], "s")
    crossover = 2 * (least["process"] - least["bare"])
    yield Row("work above which 2 process workers beat serial", crossover, "s")
    if "ray" in least:
        share = least["bare"] / least["ray"]
        yield Row("Ray, 2 workers, speed of two bare processes", share, "x", 0.9, at_least=True)
        idle = [2 * w - b for w, b in zip(wall["ray"], busy["ray"], strict=True)]
        yield Row(f"Ray, overhead per task ({tasks} tasks)", 1000 * min(idle) / tasks, "ms")
        yield from _forecast("2 workers (Ray)", said, wall["ray"])


def _forecast(label: str, said: Sequence[float], took: Sequence[float]) -> Iterator[Row]:
    """How far the plan was off: the median over rounds, whose two parts met the same neighbours."""
    yield Row(f"{label}: predicted", statistics.median(said), "s")
    yield Row(f"{label}: measured", statistics.median(took), "s")
    off = 100 * abs(statistics.median(s / t for s, t in zip(said, took, strict=True)) - 1)
    yield Row(f"{label}: the cost model is off by", off, "%", 20)


def _predicted(folder: Path, source: LocalSource, out: str, workers: int) -> float:
    """The work, divided among workers, and what a sweep takes that finds everything done."""
    todo = plan(source, ["rank"])
    # Whole tasks: on a busy machine a short measurement runs undisturbed, and says too little.
    pace = paced(todo, revisions=REVISIONS, rounds=1)
    start = time.perf_counter()
    _sweep(folder, out, "serial")
    rest = time.perf_counter() - start
    return rest + makespan([pace.seconds(task) for task in todo.tasks], workers)


def _sweep(folder: Path, out: str, engine: str) -> Outcome:
    workers = None if engine == "serial" else 2
    source = LocalSource(folder / "suite")
    return Sweep(source, ["rank"], out=folder / out, engine=engine, workers=workers).run()


def _ray() -> list[str]:
    try:
        import_module("joma.sweep.engines.ray")
    except MissingExtraError:
        return []
    return ["ray"]


@contextmanager
def _cluster(wanted: bool) -> Iterator[None]:
    """A Ray that stays, so that its start is not part of a sweep."""
    if not wanted:
        yield
        return
    ray: Any = import_module("joma.sweep.engines.ray")
    with ray.local(workers=2):
        yield


@contextmanager
def _children(halves: Sequence[Any]) -> Iterator[list[subprocess.Popen[str]]]:
    """Bare processes that have loaded their code and wait."""
    started = []
    for half in halves:
        child = subprocess.Popen(
            [sys.executable, "-m", "joma.bench._sweep_bare"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        _say(child, json.dumps([REVISIONS, half]))
        started.append(child)
    _ended(started)
    yield started
    for child in started:
        child.communicate()


def _together(children: Sequence[subprocess.Popen[str]]) -> float:
    """Seconds until all children have run their loop once, at the same time."""
    start = time.perf_counter()
    _go(children)
    _ended(children)
    return time.perf_counter() - start


def _go(children: Sequence[subprocess.Popen[str]]) -> None:
    for child in children:
        _say(child, "go")


def _ended(children: Sequence[subprocess.Popen[str]]) -> None:
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()


def _say(child: subprocess.Popen[str], words: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{words}\n")
    child.stdin.flush()


def _save(folder: Path, revisions: int) -> None:
    """Lower MLP matrices that drift, with something between them in the file."""
    base = [trained_like(4 * EMBED, EMBED, seed=i) for i in range(LAYERS)]
    generator = torch.Generator().manual_seed(0)
    for step in range(revisions):
        tensors: dict[str, torch.Tensor] = {}
        for i, weight in enumerate(base):
            weight += 0.002 * weight.std() * torch.randn(weight.shape, generator=generator)
            layer = f"gpt_neox.layers.{i}"
            tensors |= {
                f"{layer}.attention.query_key_value.weight": torch.zeros(3 * EMBED, EMBED).half(),
                NAME.format(i): weight.half(),
                f"{layer}.mlp.dense_4h_to_h.weight": torch.zeros(EMBED, 4 * EMBED).half(),
            }
        (folder / f"step{step}").mkdir(parents=True)
        save_file(tensors, folder / f"step{step}" / "model.safetensors")


BENCH = Bench(
    "Sweeps: serial beside a bare loop, Ray beside two bare processes, time as planned beside time "
    "as measured.",
    run,
)

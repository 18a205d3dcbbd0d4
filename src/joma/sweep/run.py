"""The driver: hands out tasks, commits their rows, goes on after any interruption.

The store is the ledger. A part names the tasks it completes, so rows and the knowledge that they
are there cannot come apart, and what a killed sweep had not committed is simply done again.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from joma import sources
from joma._core.errors import JomaError
from joma.records.provenance import collect
from joma.records.store import Store
from joma.sources.base import AbstractSource
from joma.sweep import quarantine
from joma.sweep.engines import registry
from joma.sweep.engines.base import AbstractEngine, AbstractPool
from joma.sweep.job import Probe, Task, Text
from joma.sweep.plan import Plan, plan, probes_of
from joma.sweep.work import Cost, Failure, Result

ATTEMPTS: Final = 3
"""After so many failures a task is put aside, and the sweep goes on without it."""
_HOPELESS: Final = 3  # tasks put aside before any was done: the fault is not in the tasks
_WAIT: Final = 1.0


@dataclass(frozen=True)
class State:
    """How far a sweep is. `Sweep.run` hands one to `progress` after every task."""

    tasks: int
    done: int
    bytes: int
    """Of the tasks that are done, as planned."""
    total_bytes: int


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    store: Store
    plan: Plan
    done: int
    """Tasks that were done by this call."""
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Tasks that were put aside, with the last reason."""
    cost: Cost = field(default_factory=Cost)
    """Of all workers together."""
    seconds: float = 0.0
    failures: int = 0
    """Attempts that failed, whether or not a later one succeeded."""


class Sweep:
    """Measures every checkpoint of a suite into a store, on any engine.

    Run it again after an interruption, with the same store: nothing is lost and nothing doubled.

    Example:
        >>> import tempfile, torch
        >>> from joma.sources.memory import MemorySource
        >>> layer = {
        ...     "blocks.0.attention.qkv.weight": torch.eye(12, 4),
        ...     "blocks.0.mlp.up.weight": torch.eye(8, 4),
        ...     "blocks.0.mlp.down.weight": torch.eye(4, 8),
        ... }
        >>> source = MemorySource({"step0": layer, "step1000": layer})
        >>> done = Sweep(source, probes=["rank"], out=tempfile.mkdtemp()).run()
        >>> done.store.read(metric="stable_rank")["value"].to_pylist()
        [4.0, 4.0]
    """

    def __init__(
        self,
        source: AbstractSource | str,
        probes: Iterable[str] | Mapping[str, Probe] = ("rank",),
        *,
        out: str | os.PathLike[str],
        engine: str | AbstractEngine = "serial",
        workers: int | None = None,
        timeout: float | int | None = None,
        address: str | None = None,
        text: Text | None = None,
        sample: int | None = None,
        commit_seconds: float | int = 10,
    ):
        """`source` may be a text as `joma.sources.open` takes it, `engine` a name.

        Args:
            source: Where the checkpoints are.
            probes: Names of metrics, or probes by name.
            out: Folder of the records store.
            engine: `serial`, `process` or `ray`, or an engine with its settings.
            workers: How many tasks at once; the engine's own number if absent.
            timeout: Seconds that one task may take.
            address: Of a Ray cluster.
            text: What models read, for probes that watch them.
            sample: For fingerprints: how many tensors of each file to look at.
            commit_seconds: How long rows may wait for others to be committed with them. A kill
                loses at most so much work.
        """
        self.source = sources.open(source) if isinstance(source, str) else source
        self.probes = probes_of([probes] if isinstance(probes, str) else probes)
        self.out = Path(out)
        self.text = text
        self.sample = sample
        self.commit_seconds = commit_seconds
        if isinstance(engine, str):
            made: AbstractEngine = registry.load(engine)(workers, timeout, address)
            engine = made
        self.engine = engine

    def plan(self) -> Plan:
        """What is still to be done, and what it reads."""
        completed = Store(self.out).completed()
        return plan(
            self.source, self.probes, text=self.text, completed=completed, sample=self.sample
        )

    def run(self, progress: Callable[[State], object] = lambda _: None) -> Outcome:
        """Do what is not done yet.

        Raises:
            JomaError: Nothing works: every task fails, or the store cannot be written. What was
                committed before stays.
        """
        start = time.perf_counter()
        todo = self.plan()
        store = Store(self.out, provenance=collect(config=self._settings()))
        driver = _Driver(todo, store, self.commit_seconds, progress)
        if todo.tasks:
            with self.engine.opened(todo.job) as pool:
                driver.drive(pool)
        return Outcome(
            store,
            todo,
            driver.done,
            driver.aside,
            driver.cost,
            time.perf_counter() - start,
            driver.failures,
        )

    def _settings(self) -> dict[str, Any]:
        return {
            "source": self.source.spec,
            "probes": {name: repr(type(probe).__name__) for name, probe in self.probes.items()},
            "engine": type(self.engine).__name__,
        }


class _Driver:
    """One run of a plan: who has which task, and what came of it."""

    def __init__(
        self,
        todo: Plan,
        store: Store,
        commit_seconds: float | int,
        progress: Callable[[State], object],
    ):
        self.done = self.failures = 0
        self.aside: dict[str, str] = {}
        self.cost = Cost()
        self._plan = todo
        self._store = store
        self._commit_seconds = commit_seconds
        self._progress = progress
        self._waiting = deque(enumerate(todo.tasks))
        self._failed: Counter[int] = Counter()
        self._bytes = 0

    def drive(self, pool: AbstractPool) -> None:
        """Hand out tasks while there is room, and take in what is finished."""
        flying: dict[int, Task] = {}
        with self._store.writer(seconds=self._commit_seconds) as writer:
            while self._waiting or flying:
                while self._waiting and pool.room > 0:
                    ticket, task = self._waiting.popleft()
                    flying[ticket] = task
                    pool.submit(ticket, task)
                for ticket, answer in pool.finished(_WAIT):
                    task = flying.pop(ticket)
                    if isinstance(answer, Result):
                        keys = task.keys(self._plan.job)
                        writer.append(answer.table, {task.run: keys})
                        self._took(task, answer)
                    else:
                        self._lost(ticket, task, answer)

    def _took(self, task: Task, result: Result) -> None:
        self.done += 1
        self.cost += result.cost
        quarantine.lift(self._store.path, task.keys(self._plan.job))
        self._bytes += self._plan.amount(task).bytes
        self._progress(State(len(self._plan.tasks), self.done, self._bytes, self._plan.total.bytes))

    def _lost(self, ticket: int, task: Task, failure: Failure) -> None:
        self.failures += 1
        self._failed[ticket] += 1
        if self._failed[ticket] < ATTEMPTS:
            self._waiting.append((ticket, task))
            return
        self.aside[str(task)] = failure.reason
        quarantine.note(self._store.path, task, task.keys(self._plan.job), failure.reason)
        if self.done == 0 and len(self.aside) >= min(_HOPELESS, len(self._plan.tasks)):
            raise JomaError(
                f"The first {len(self.aside)} tasks failed {ATTEMPTS} times each, and none was "
                f"done. The last one, {task}: {failure.reason}"
            )

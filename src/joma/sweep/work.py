"""What a worker does with a task: read, measure, hand back a table. Knows no engine."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import torch
from torch import Tensor

from joma._core.errors import JomaError
from joma.probes.base import WEIGHT_NEEDS, AbstractStreamProbe, AbstractWeightProbe, Need, Place
from joma.records import arrow
from joma.records.schema import Context, Reading, Record
from joma.sources._retry import TransientError
from joma.sources.base import ChangedFileError, Index, Revision
from joma.sweep import fingerprint, shown
from joma.sweep.job import Job, Task, seed_of
from joma.sweep.shown import Spot

UNREADABLE: Final = "unreadable"
"""Metric of the record that says why a revision, or a place in it, has no value."""
BATCH: Final = 256 * 2**20
"""Bytes that are read at once, or one place if that is more."""
_LONGEST = 300  # characters of a reason in a record


@dataclass(frozen=True)
class Cost:
    """What a task took, in its worker."""

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    reading: float = 0.0
    """Seconds."""
    measuring: float = 0.0
    """Seconds."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.bytes + other.bytes,
            self.requests + other.requests,
            self.retries + other.retries,
            self.reading + other.reading,
            self.measuring + other.measuring,
        )


@dataclass(frozen=True)
class Result:
    """The rows of a task, and what they cost."""

    table: pa.Table
    cost: Cost


@dataclass(frozen=True)
class Failure:
    """A task that was not done, and why."""

    reason: str


def measure(job: Job, task: Task) -> Result:
    """All rows of a task. On one thread, so that values are the same on every engine.

    A revision whose files are damaged or of another make is a fact about the suite: it becomes
    a record `unreadable` with the reason. What may pass, like a silent server, raises.
    """
    traffic = job.source.traffic
    before = Cost(traffic.bytes, traffic.requests, traffic.retries)
    with _quiet():
        clock = _Clock()
        rows = list(_rows(job, task, clock))
    cost = Cost(
        traffic.bytes - before.bytes,
        traffic.requests - before.requests,
        traffic.retries - before.retries,
        clock.reading,
        clock.measuring,
    )
    return Result(arrow.table(rows), cost)


def attempt(job: Job, task: Task) -> Result | Failure:
    """A task, done or failed with a sentence."""
    try:
        return measure(job, task)
    except Exception as error:
        # Whatever a probe or a file brings up must cost one task, never the sweep.
        return Failure(f"{type(error).__name__}: {error}")


def passing(error: BaseException) -> bool:
    """Whether a failure may pass, so that trying again makes sense."""
    return (
        not isinstance(error, JomaError)
        or isinstance(error, ChangedFileError)
        or isinstance(error.__cause__, TransientError)
    )


class _Clock:
    """Where the time of a task goes."""

    def __init__(self) -> None:
        self.reading = 0.0
        self.measuring = 0.0

    def read(self, act: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return act()
        finally:
            self.reading += time.perf_counter() - start

    @contextmanager
    def measured(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.measuring += time.perf_counter() - start


def _rows(job: Job, task: Task, clock: _Clock) -> Iterator[Record]:
    warm: dict[tuple[str, str], Any] = {}
    for revision in task.revisions:
        try:
            found = list(_revision(job, task, revision, warm, clock))
        except Exception as error:
            if passing(error):
                raise
            found = [_unreadable(Place(site=task.need), str(error))]
        yield from (_record(job, task, revision, reading) for reading in found)


def _revision(
    job: Job, task: Task, revision: Revision, warm: dict[tuple[str, str], Any], clock: _Clock
) -> Iterator[Reading]:
    if task.need != fingerprint.NEED and Need(task.need) not in WEIGHT_NEEDS:
        yield from _watched(job, task, revision, clock)
        return
    index = clock.read(lambda: job.source.index(revision.name))
    there: dict[str, list[Spot]] = {}
    for spot in layout(job, task.run, task.need, index):
        there.setdefault(spot.key, []).append(spot)
    wanted = [spot for key in task.spots for spot in there.get(key, ())]
    for key in task.spots:
        if key not in there and key != fingerprint.UNCOVERED:
            reason = f"revision {revision.name!r} has no place {key!r} of {task.need}"
            yield _unreadable(Place(site=f"{task.need} {key}"), reason)
    for batch in _batches(wanted, index):
        names = dict.fromkeys(name for spot in batch for name in spot.names)
        tensors = clock.read(partial(job.source.read, revision.name, names))
        with clock.measured():
            for spot in batch:
                seed = seed_of(task.run, revision.name, spot.key)
                yield from _shown(job, task, spot, tensors, warm, seed)


def layout(job: Job, run: str, need: str, index: Index) -> tuple[Spot, ...]:
    """Every spot of a need in one revision."""
    if need == fingerprint.NEED:
        return fingerprint.spots(index, job.chosen[run])
    return shown.spots(Need(need), index, job.configs.get(run, {}))


def _shown(
    job: Job,
    task: Task,
    spot: Spot,
    tensors: Mapping[str, Tensor],
    warm: dict[tuple[str, str], Any],
    seed: int,
) -> Iterator[Reading]:
    taken = spot.take(tensors)
    shapes = {role: tuple(t.shape) for role, t in taken.items()}
    for name in task.probes:
        probe = job.probes[name]
        assert isinstance(probe, AbstractWeightProbe)
        before, start = warm.get((name, spot.key), (shapes, None))
        # Not torch.manual_seed: it notes a stack trace for every kind of device, 2 ms in all.
        torch.default_generator.manual_seed(seed)
        # What was learned of a matrix of another shape is of no use.
        readings, after = probe.measure(spot.place, taken, start if before == shapes else None)
        warm[name, spot.key] = (shapes, after)
        yield from readings


def _watched(job: Job, task: Task, revision: Revision, clock: _Clock) -> Iterator[Reading]:
    if job.text is None:
        raise JomaError(f"{', '.join(task.probes)} watch a model read: give a text.")
    probes = {n: p for n in task.probes if isinstance(p := job.probes[n], AbstractStreamProbe)}
    text = import_module("joma.sweep.text")  # here, as it needs transformers
    with clock.measured():
        found = text.readings(job.source, revision.name, job.text, probes)
    for readings in found.values():
        yield from readings


def _record(job: Job, task: Task, revision: Revision, reading: Reading) -> Record:
    watched = task.need in (Need.ATTENTION.value, Need.HIDDEN.value) and job.text is not None
    return Record(
        run=revision.run,
        step=revision.at,
        reading=reading,
        context=Context.PROBE if watched else Context.WEIGHTS,
        stage=revision.stage,
        tokens=revision.tokens,
        sequence_length=job.text.length if watched and job.text is not None else None,
    )


def _unreadable(place: Place, reason: str) -> Reading:
    return place.reading(UNREADABLE, math.nan, status=reason[:_LONGEST])


def _batches(wanted: Sequence[Spot], index: Index) -> Iterator[list[Spot]]:
    batch: list[Spot] = []
    size = 0
    for spot in wanted:
        more = sum(index.tensors[name].nbytes for name in spot.names)
        if batch and size + more > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(spot)
        size += more
    if batch:
        yield batch


@contextmanager
def _quiet() -> Iterator[None]:
    """One thread, no gradients, and the random state left as it was found."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)

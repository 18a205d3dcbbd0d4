"""What a sweep costs: time, and money, from a few measured constants.

A worker reads, then measures: seconds add up. Workers do not wait for each other, so time is the
work divided among them, unless the network or the hub's limit on requests says otherwise.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from joma._core.errors import JomaError
from joma.metrics.rank import SMALL
from joma.sweep.job import Task
from joma.sweep.plan import Plan
from joma.sweep.work import measure

HUB_REQUESTS: Final = 5000 / 300
"""Calls a second that the hub allows a free account."""
ANONYMOUS_REQUESTS: Final = 3000 / 300
"""Calls a second that the hub allows without an account."""


@dataclass(frozen=True)
class Machine:
    """What one worker can do. Rates of `rank` were measured on one core of a busy x86 machine."""

    latency: float | int = 0.1
    """Seconds of a request before its first byte. Assumed: it depends on where the worker is."""
    bandwidth: float | int = 50e6
    """Bytes a second of one worker. Assumed, for the same reason."""
    cold: float | int = 23e-9
    """Seconds for an element of a matrix at the first revision of a task. Measured on Gaussian
    matrices, as at step 0; with the outliers of trained ones it was 6e-9."""
    warm: float | int = 18e-9
    """The same at the following revisions; with outliers 4e-9."""
    gram: float | int = 5.2e-11
    """Seconds for an element and column of a matrix with 512 columns, cold or warm. Narrower ones
    cost more for each, up to 1.4e-10 at 128; they hardly count."""
    overhead: float | int = 0.05
    """Seconds of driver and engine for a task."""
    start: float | int = 10.0
    """Seconds until the workers of an engine are there."""

    def measuring(self, shape: Sequence[int], revisions: int) -> float:
        """Seconds for one matrix at so many revisions, of which the first is cold."""
        elements, narrow = math.prod(shape), min(shape, default=0)
        if narrow <= SMALL:
            return revisions * elements * narrow * self.gram
        return elements * (self.cold + (revisions - 1) * self.warm)


@dataclass(frozen=True)
class Limits:
    """What all workers share."""

    requests: float | int = HUB_REQUESTS
    """A second, over all workers."""
    bandwidth: float | int = math.inf
    """Bytes a second, over all workers."""


@dataclass(frozen=True)
class Work:
    """What is to be done."""

    bytes: float | int = 0.0
    requests: float | int = 0.0
    measuring: float | int = 0.0
    """Seconds of one worker."""
    tasks: float | int = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.bytes + other.bytes,
            self.requests + other.requests,
            self.measuring + other.measuring,
            self.tasks + other.tasks,
        )


@dataclass(frozen=True)
class Estimate:
    """Time and money of a sweep."""

    workers: int
    seconds: float
    busy: float
    """Seconds of all workers together."""
    first: str
    """What saturates first: `workers`, `requests` or `network`."""
    dollars: float


def estimate(
    work: Work,
    workers: int,
    machine: Machine | None = None,
    limits: Limits | None = None,
    *,
    price: float | int = 0.05,
) -> Estimate:
    """What a sweep takes with so many workers.

    Args:
        work: What is to be done.
        workers: How many, each with a core of its own.
        machine: What each can do.
        limits: What they share.
        price: Dollars for a worker and an hour. Assumed.

    Example:
        >>> estimate(Work(bytes=1e9, requests=100, tasks=20), workers=4).first
        'workers'
    """
    machine, limits = machine or Machine(), limits or Limits()
    reading = work.bytes / machine.bandwidth + work.requests * machine.latency
    busy = reading + work.measuring + work.tasks * machine.overhead
    times = {
        "workers": busy / min(workers, max(1.0, work.tasks)),
        "requests": work.requests / limits.requests,
        "network": work.bytes / limits.bandwidth,
    }
    first = max(times, key=lambda what: times[what])
    seconds = machine.start + times[first]
    return Estimate(workers, seconds, busy, first, seconds / 3600 * workers * price)


def work_of(plan: Plan, machine: Machine | None = None) -> Work:
    """What the tasks of a plan consist of. Every probe is taken to cost what `rank` does."""
    machine, total = machine or Machine(), Work()
    for task in plan.tasks:
        read, n = plan.amount(task), len(task.revisions)
        once = sum(machine.measuring(shape, n) for shape in read.shapes)
        total += Work(read.bytes, read.requests, once * len(task.probes), 1)
    return total


@dataclass(frozen=True)
class Pace:
    """Seconds of a revision, cold and warm, for each kind of task; measured, not modelled."""

    cold: Mapping[tuple[str, str, tuple[str, ...]], float]
    warm: Mapping[tuple[str, str, tuple[str, ...]], float]

    def seconds(self, task: Task) -> float:
        """Of one task in its worker."""
        kind = (task.run, task.need, task.spots)
        return self.cold[kind] + (len(task.revisions) - 1) * self.warm[kind]


def paced(plan: Plan, *, revisions: int = 3, rounds: int = 2) -> Pace:
    """The pace of this machine on this suite, from the first revisions of each kind of task.

    Costs about `rounds * (revisions + 1)` revisions of reading and measuring. Takes medians over
    rounds: what happens once, like loading code, is not the pace.
    """
    if not plan.tasks:
        raise JomaError("There is nothing to time: every task of this sweep is done.")
    kinds: dict[tuple[str, str, tuple[str, ...]], Task] = {}
    for task in plan.tasks:
        longest = kinds.get((task.run, task.need, task.spots))
        if longest is None or len(task.revisions) > len(longest.revisions):
            kinds[task.run, task.need, task.spots] = task
    cold: dict[tuple[str, str, tuple[str, ...]], list[float]] = defaultdict(list)
    warm: dict[tuple[str, str, tuple[str, ...]], list[float]] = defaultdict(list)
    for _ in range(rounds + 1):  # the first round loads code, and is not counted
        for kind, task in kinds.items():
            several = task.revisions[:revisions]
            one = _seconds(plan, replace(task, revisions=several[:1]))
            rest = _seconds(plan, replace(task, revisions=several)) - one
            cold[kind].append(one)
            warm[kind].append(max(0.0, rest) / max(1, len(several) - 1) or one)
    return Pace(
        {kind: statistics.median(seen[1:]) for kind, seen in cold.items()},
        {kind: statistics.median(seen[1:]) for kind, seen in warm.items()},
    )


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Time until all tasks are done, if each free worker takes the next one.

    Example:
        >>> makespan([3.0, 1.0, 1.0, 1.0], 2)
        3.0
    """
    free = [0.0] * workers
    for task in seconds:
        at = free.index(min(free))
        free[at] += task
    return max(free)


def _seconds(plan: Plan, task: Task) -> float:
    start = time.perf_counter()
    measure(plan.job, task)
    return time.perf_counter() - start

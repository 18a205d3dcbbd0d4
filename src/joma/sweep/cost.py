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
from joma.sweep.job import Task
from joma.sweep.plan import Plan
from joma.sweep.work import measure

HUB_REQUESTS: Final = 5000 / 300
"""Calls a second that the hub allows a free account."""
ANONYMOUS_REQUESTS: Final = 3000 / 300
"""Calls a second that the hub allows without an account."""


@dataclass(frozen=True)
class Machine:
    """What one worker can do. The constants were measured by `joma bench sweep`; see `measured`."""

    latency: float = 0.1
    """Seconds of a request before its first byte. Assumed: it depends on where the worker is."""
    bandwidth: float = 50e6
    """Bytes a second of one worker. Assumed, for the same reason."""
    cold: float = 1.8e-8
    """Seconds of a measurement for an element, at the first revision of a task."""
    warm: float = 1.2e-8
    """The same at the following ones."""
    overhead: float = 0.02
    """Seconds of driver and engine for a task."""
    start: float = 5.0
    """Seconds until the workers of an engine are there."""


@dataclass(frozen=True)
class Limits:
    """What all workers share."""

    requests: float = HUB_REQUESTS
    """A second, over all workers."""
    bandwidth: float = math.inf
    """Bytes a second, over all workers."""


@dataclass(frozen=True)
class Work:
    """What is to be done, in the units that cost something."""

    bytes: float
    requests: float
    elements: float
    """Of the matrices that are measured, over all revisions."""
    cold_share: float = 0.125
    """Share of the elements that are measured cold: one revision of eight."""
    tasks: float = 1.0

    def __add__(self, other: "Work") -> "Work":
        total = self.elements + other.elements
        cold = self.cold_share * self.elements + other.cold_share * other.elements
        return Work(
            self.bytes + other.bytes,
            self.requests + other.requests,
            total,
            cold / total if total else 0.0,
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
    price: float = 0.05,
) -> Estimate:
    """What a sweep takes with so many workers.

    Args:
        work: What is to be done.
        workers: How many, each with a core of its own.
        machine: What each can do.
        limits: What they share.
        price: Dollars for a worker and an hour. Assumed; a core of a rented machine costs about so.

    Example:
        >>> estimate(Work(1e9, 100, 1e8), workers=4).first
        'workers'
    """
    machine, limits = machine or Machine(), limits or Limits()
    reading = work.bytes / machine.bandwidth + work.requests * machine.latency
    rate = work.cold_share * machine.cold + (1 - work.cold_share) * machine.warm
    busy = reading + work.elements * rate + work.tasks * machine.overhead
    times = {
        "workers": busy / min(workers, max(1.0, work.tasks)),
        "requests": work.requests / limits.requests,
        "network": work.bytes / limits.bandwidth,
    }
    first = max(times, key=lambda what: times[what])
    seconds = machine.start + times[first]
    return Estimate(workers, seconds, busy, first, seconds / 3600 * workers * price)


def work_of(plan: Plan) -> Work:
    """What the tasks of a plan consist of."""
    total = Work(0.0, 0.0, 0.0, tasks=0.0)
    for task in plan.tasks:
        read = plan.amount(task)
        per_revision = sum(math.prod(shape) for shape in read.shapes) * len(task.probes)
        n = len(task.revisions)
        total += Work(read.bytes, read.requests, per_revision * n, 1 / n)
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

"""What the monitor costs, by its own clock, and how often it may look for a given share."""

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

SLOWEST: Final = 2**20
"""The rarest observation that a budget may lead to, in steps."""


@dataclass(frozen=True)
class Cost:
    """Seconds spent so far. `cpu` is that of the training thread and of the monitor's own."""

    wall: float
    cpu: float
    total: float
    """Wall time since the first step ended, and what the monitor took before that."""
    observed: int
    """Observations made."""

    @property
    def percent(self) -> float:
        """Share of the wall time; `nan` before the first step."""
        return 100 * self.wall / self.total if self.total > self.wall else float("nan")


def paced(*, budget: float, spent: float, elapsed: float, look: float, step: float, at: int) -> int:
    """The least power of two that keeps observations at its multiples within `budget`.

    It must do so in the long run, and also pay back what was `spent` so far by the time of the
    next observation: looking for the first time costs more than looking again.

    Args:
        budget: Share of the wall time.
        spent: Seconds that the monitor has taken.
        elapsed: Seconds since the run began, those of the monitor included.
        look: Seconds of one observation.
        step: Seconds of one step of training without the monitor.
        at: The step now.

    Example:
        >>> paced(budget=0.01, spent=0.0, elapsed=1.0, look=0.1, step=1.0, at=0)
        16
    """
    every = 1
    while every < SLOWEST:
        ahead = every - at % every
        lasting = look <= budget * (look + every * step)
        repaid = spent + look <= budget * (elapsed + look + ahead * step)
        if lasting and repaid:
            break
        every *= 2
    return every


@dataclass
class Clock:
    """Counts what happens inside `running` as the monitor's, and everything else as training."""

    wall: float = 0.0
    cpu: float = 0.0
    observed: int = 0
    look: float = 0.0
    """Seconds of an observation, as far as is known."""
    _setup: float = 0.0
    _before: float = 0.0
    _origin: float | None = None
    _left: float | None = None
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=16))

    @contextmanager
    def running(self) -> Iterator[None]:
        """The monitor is at work."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.wall += time.perf_counter() - wall
            self.cpu += time.thread_time() - cpu

    def add(self, seconds: float) -> None:
        """The monitor was at work inside the forward pass of training."""
        self.wall += seconds
        self.cpu += seconds

    def tick(self) -> None:
        """A step of training has ended; the monitor begins its part of it."""
        now = time.perf_counter()
        if self._left is not None:
            self._steps.append(now - self._left)

    def leave(self) -> None:
        """The monitor hands back to training. The first step, which may compile, is not timed."""
        self._left = time.perf_counter()
        if self._origin is None:
            self._origin, self._before = self._left, self.wall

    def looked(self, seconds: float) -> None:
        """An observation took this long. What the first took beyond the second was setting up."""
        if self.observed < 2:
            self._setup = seconds if self.observed == 0 else max(0.0, self._setup - seconds)
            self.look = seconds
        self.look = max(seconds, 0.5 * (self.look + seconds))
        self.observed += 1

    @property
    def elapsed(self) -> float:
        """Seconds since the first step ended, and those of the monitor before."""
        if self._origin is None:
            return 0.0
        return time.perf_counter() - self._origin + self._before

    def every(self, budget: float, at: int) -> int | None:
        """How often to look from step `at` on; None before two observations and a timed step.

        What was paid once, to find the way into the model, is not paced, or a short run would
        never be looked at again; `cost` counts it.
        """
        if self.observed < 2 or not self._steps:
            return None
        return paced(
            budget=budget,
            spent=self.wall - self._setup,
            elapsed=self.elapsed,
            look=self.look,
            step=statistics.median(self._steps),
            at=at,
        )

    def cost(self, elsewhere: float = 0.0) -> Cost:
        """So far; `elsewhere` is CPU time of the monitor's own threads."""
        return Cost(self.wall, self.cpu + elsewhere, self.elapsed, self.observed)

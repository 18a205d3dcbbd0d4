"""What an engine can do. Start here to add one.

An engine is a file that defines `ENGINE`, a subclass of `AbstractEngine`. It runs tasks somewhere
and says how each ended; which tasks, how often and what becomes of the rows is not its business.
"""

import abc
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from joma._core.errors import JomaError
from joma.sweep.job import Job, Task
from joma.sweep.work import Failure, Result

TIMEOUT = 3600.0
"""Seconds a task may take, if nothing else is said."""


class AbstractPool(abc.ABC):
    """Workers that are there. Tasks are known by their ticket, a number."""

    @property
    @abc.abstractmethod
    def room(self) -> int:
        """How many more tasks may be submitted now."""

    @abc.abstractmethod
    def submit(self, ticket: int, task: Task) -> None:
        """Start a task as soon as a worker is free. Only while there is room."""

    @abc.abstractmethod
    def finished(self, seconds: float) -> list[tuple[int, Result | Failure]]:
        """Tasks that ended, waiting up to so long for the first one.

        The death of a worker is the failure of the task it had; another takes its place.
        """


class AbstractEngine(abc.ABC):
    """A way to run tasks."""

    def __init__(
        self,
        workers: int | None = None,
        timeout: float | int | None = None,
        address: str | None = None,
    ):
        """`workers`: how many tasks at once; `address`: of a cluster, if the engine has one."""
        if workers is not None and workers < 1:
            raise JomaError(f"An engine needs at least one worker; got {workers}.")
        self.workers = workers
        self.timeout = TIMEOUT if timeout is None else float(timeout)
        self.address = address

    @abc.abstractmethod
    def opened(self, job: Job) -> AbstractContextManager[AbstractPool]:
        """Workers for a job, until the context ends."""

    def slow(self) -> str:
        """The sentence about a task that ran out of time."""
        return f"It took longer than the {self.timeout:g} s that a task may take (--timeout)."


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Within it, this process dies of SIGALRM after so many seconds, whatever it is busy with.

    For workers only. No Python code runs then, so it also ends a task that hangs in native code.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

"""One task after the other, in this process. Enough for small models: nothing has to start."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, final

from joma._core.errors import JomaError
from joma.sweep.engines.base import AbstractEngine, AbstractPool
from joma.sweep.job import Job, Task
from joma.sweep.work import Failure, Result, attempt


@final
class SerialEngine(AbstractEngine):
    """This process. A task that is late is interrupted between two steps of Python code."""

    def opened(self, job: Job) -> "_Here":
        if self.workers not in (None, 1) or self.address is not None:
            raise JomaError(
                "The serial engine is one worker in this process. For more, use --engine process "
                "or --engine ray."
            )
        return _Here(job, self)


@final
class _Here(AbstractPool):
    def __init__(self, job: Job, engine: SerialEngine):
        self._job = job
        self._engine = engine
        self._next: tuple[int, Task] | None = None

    def __enter__(self) -> "_Here":
        return self

    def __exit__(self, *_: object) -> None:
        self._next = None

    @property
    def room(self) -> int:
        return 0 if self._next else 1

    def submit(self, ticket: int, task: Task) -> None:
        assert self._next is None
        self._next = (ticket, task)

    def finished(self, seconds: float) -> list[tuple[int, Result | Failure]]:
        if self._next is None:
            return []
        (ticket, task), self._next = self._next, None
        try:
            with _interrupted(self._engine.timeout):
                return [(ticket, attempt(self._job, task))]
        except _Late:
            return [(ticket, Failure(self._engine.slow()))]


class _Late(BaseException):
    """Not an `Exception`: nothing in a task may take it for an error of its own."""


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Raises `_Late` inside after so many seconds. Only a main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


ENGINE = SerialEngine

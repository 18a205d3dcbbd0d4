"""Workers on this machine, each a process of its own, started afresh and without Ray."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import final

from joma._core.errors import JomaError
from joma.sweep.engines.base import AbstractEngine, AbstractPool
from joma.sweep.job import Job, Task
from joma.sweep.work import Failure, Result
from joma.sweep.worker import received, send


@final
class ProcessEngine(AbstractEngine):
    """As many processes as this machine has cores, unless told otherwise."""

    def opened(self, job: Job) -> "_Pool":
        if self.address is not None:
            raise JomaError("The process engine has no address: it is this machine. Use ray.")
        return _Pool(job, self, self.workers or _cores())


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    line: Connection
    ticket: int | None = None


@final
class _Pool(AbstractPool):
    def __init__(self, job: Job, engine: ProcessEngine, count: int):
        self._job = job
        self._engine = engine
        self._count = count
        self._workers: list[_Worker] = []

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.line.close()
        for worker in self._workers:
            worker.process.wait()

    @property
    def room(self) -> int:
        return self._count - sum(w.ticket is not None for w in self._workers)

    def submit(self, ticket: int, task: Task) -> None:
        idle = next((w for w in self._workers if w.ticket is None), None)
        if idle is None:
            idle = self._started()
        idle.ticket = ticket
        try:
            send(idle.line, task)
        except OSError:  # died while idle: `finished` sees the closed line
            return

    def finished(self, seconds: float) -> list[tuple[int, Result | Failure]]:
        busy = {w.line: w for w in self._workers if w.ticket is not None}
        return [self._ended(busy[line]) for line in wait(list(busy), seconds)]  # type: ignore[index]

    def _ended(self, worker: _Worker) -> tuple[int, Result | Failure]:
        assert worker.ticket is not None
        ticket, worker.ticket = worker.ticket, None
        try:
            answer: Result | Failure = received(worker.line)
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.line.close()
            return ticket, Failure(self._death(worker.process.wait()))
        return ticket, answer

    def _death(self, code: int) -> str:
        if code == -signal.SIGALRM:
            return self._engine.slow()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"Its worker process ended {how}; if by SIGKILL, memory may have run out."

    def _started(self) -> _Worker:
        # Not multiprocessing.Process: it would run the caller's main module again.
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "joma.sweep.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        send(ours, (self._job, self._engine.timeout))
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ENGINE = ProcessEngine

"""Edge file for joma[ray]: tasks on a Ray cluster, or on one started here for the sweep."""

import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from joma._core.errors import JomaError
from joma._core.extras import extra
from joma.sweep.engines.base import AbstractEngine, AbstractPool, deadline
from joma.sweep.job import Job, Task
from joma.sweep.work import Failure, Result, attempt

with extra("ray", packages=("ray",), purpose="The Ray engine"):
    import ray as _typed

ray: Any = _typed  # its hints differ between versions

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_gcs_server_request_timeout_seconds": "30",
}
_NOBODY = (
    "No Ray cluster at {}: {}. Start one with 'ray start --head', or leave --address out for one "
    "on this machine."
)
_KNOCK = 10.0  # seconds
_LOOK = 2.0  # seconds between two looks at the size of the cluster


@final
class RayEngine(AbstractEngine):
    """Tasks of one CPU each. Without `workers`, as many as the cluster has, also if it grows."""

    def opened(self, job: Job) -> "_Cluster":
        return _Cluster(job, self)


@final
class _Cluster(AbstractPool):
    def __init__(self, job: Job, engine: RayEngine):
        self._job = job
        self._engine = engine
        self._tickets: dict[Any, tuple[int, float]] = {}
        self._ours = False
        self._looked, self._cpus = 0.0, 1

    def __enter__(self) -> "_Cluster":
        if not ray.is_initialized():
            _connect(self._engine.address, self._engine.workers)
            self._ours = True
        self._shared = ray.put(self._job)
        # Retries are the driver's: it counts them, and knows a task that kills its workers.
        self._work = ray.remote(num_cpus=1, max_retries=0)(_attempt)
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self._tickets:
            ray.cancel(reference, force=True)
        if self._ours:
            ray.shutdown()

    @property
    def room(self) -> int:
        return (self._engine.workers or self._size()) - len(self._tickets)

    def submit(self, ticket: int, task: Task) -> None:
        reference = self._work.remote(self._shared, task, self._engine.timeout)
        self._tickets[reference] = ticket, time.monotonic()

    def finished(self, seconds: float) -> list[tuple[int, Result | Failure]]:
        waiting = list(self._tickets)
        if not waiting:
            return []
        ready, rest = ray.wait(waiting, timeout=seconds)
        if rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [self._ended(reference) for reference in ready]

    def _ended(self, reference: Any) -> tuple[int, Result | Failure]:
        ticket, since = self._tickets.pop(reference)
        try:
            answer: Result | Failure = ray.get(reference)
        except ray.exceptions.RayError as error:
            if time.monotonic() - since >= self._engine.timeout:
                return ticket, Failure(self._engine.slow())
            lines = str(error).strip().splitlines() or [""]
            return ticket, Failure(f"{type(error).__name__}: {lines[0]}")
        return ticket, answer

    def _size(self) -> int:
        now = time.monotonic()
        if now - self._looked > _LOOK:
            self._looked = now
            self._cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        return self._cpus


@contextmanager
def local(workers: int) -> Iterator[None]:
    """A Ray on this machine for several sweeps, which then need not start one each."""
    _connect(None, workers)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str | None, workers: int | None) -> None:
    if address:
        _reachable(address)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # A cluster has its own number of CPUs and its own dashboard.
    mine = {} if address else {"num_cpus": workers, "include_dashboard": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about its future
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **mine)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where, why = address or "this machine", str(error).strip()
            raise JomaError(_NOBODY.format(where, why.splitlines()[0])) from error


def _reachable(address: str) -> None:
    """Raise unless somebody listens at `HOST:PORT`: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto" and the like: Ray knows
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK).close()
    except OSError as error:
        raise JomaError(_NOBODY.format(address, error.strerror or error)) from error


def _attempt(job: Job, task: Task, timeout: float) -> Result | Failure:
    with deadline(timeout):
        return attempt(job, task)


ENGINE = RayEngine

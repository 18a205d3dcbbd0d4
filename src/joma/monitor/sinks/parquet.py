"""Records on disk, always: grouped into few parts, each step once, whatever is killed between."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from joma._core.errors import StoreError
from joma.monitor.sinks.base import AbstractSink, Entry
from joma.records import arrow
from joma.records.provenance import collect
from joma.records.store import Store

SECONDS: Final = 10.0
"""What a kill can cost: rows wait this long for others to share a part with."""
ROWS: Final = 100_000
"""Rows that wait at most while the disk is full; the oldest go first."""
SCALARS: Final = "scalars/"

_LOG = logging.getLogger("joma.monitor")


class Parquet(AbstractSink):
    """Writes every record into the store, and none that is already there."""

    def __init__(self, config: Mapping[str, Any] | None = None, seconds: float | int = SECONDS):
        """`config` goes into the provenance of the run."""
        self.lost = 0
        """Rows given up because the disk did not take them."""
        self._config = config
        self._seconds = seconds
        self._waiting: list[Entry] = []
        self._since = 0.0
        self._through = -1
        self._done: set[str] = set()

    def open(self, run: str, out: Path) -> None:
        """Find out what an earlier process of the same run has written."""
        self._store = Store(out, collect(config=self._config))
        self._done = self._store.completed(run)
        ends = [int(k.removeprefix(SCALARS)) for k in self._done if k.startswith(SCALARS)]
        self._through = max(ends, default=-1)
        if self._done:
            _LOG.info("Run %r has records already; steps that are there stay as they are.", run)

    def log(self, entry: Entry) -> None:
        """Take the rows of a step, unless they are there."""
        if entry.key in self._done:
            return
        records = entry.records
        if entry.key.startswith(SCALARS):
            records = tuple(r for r in records if r.step > self._through)
        if not records:
            return
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(Entry(entry.step, {}, records, entry.key))
        self._forget()
        if time.monotonic() - self._since > self._seconds:
            self.flush()

    def flush(self) -> None:
        """Write one part. If the disk does not take it, the rows wait for the next time."""
        if not self._waiting:
            return
        self._since = time.monotonic()
        rows = [record for entry in self._waiting for record in entry.records]
        self._store.append(arrow.table(rows), tasks=[entry.key for entry in self._waiting])
        self._waiting = []

    def close(self) -> None:
        """Write what waits, or say what is lost."""
        try:
            self.flush()
        except StoreError as error:
            self.lost += sum(len(entry.records) for entry in self._waiting)
            raise StoreError(f"{self.lost} rows of records are lost. {error}") from error
        if self.lost:
            raise StoreError(f"{self.lost} rows of records are lost: the disk did not take them.")

    def _forget(self) -> None:
        while sum(len(entry.records) for entry in self._waiting) > ROWS:
            self.lost += len(self._waiting.pop(0).records)


SINK = Parquet

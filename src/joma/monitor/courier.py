"""Carrying entries to a sink in a thread of its own: training never waits for one."""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from joma.monitor.sinks.base import AbstractSink, Alert, Entry

LIMIT: Final = 1000
"""Entries that wait for a slow sink; more are dropped, and counted."""
QUIET: Final = 10.0
"""Seconds without an entry after which a sink is asked to flush."""

_LOG = logging.getLogger("joma.monitor")


class Courier:
    """One sink and its thread. `put` never waits and never raises."""

    def __init__(self, name: str, sink: AbstractSink, run: str, out: Path):
        """The thread is started by the first entry."""
        self.name = name
        self.dropped = 0
        self.errors = 0
        self.cpu = 0.0
        """CPU seconds of the thread so far."""
        self._sink = sink
        self._where = (run, out)
        # A simple queue may be used from a signal handler that interrupts its own caller.
        self._queue: queue.SimpleQueue[Entry | Alert | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def put(self, item: Entry | Alert) -> None:
        """Hand over; dropped if too many wait already."""
        if self._queue.qsize() >= LIMIT:
            self.dropped += 1
            return
        self._start()
        self._queue.put(item)

    def flush(self, seconds: float) -> bool:
        """Ask for everything handed over to be made durable; True if that was done in time."""
        if not self._alive():
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def close(self, seconds: float) -> None:
        """Finish, within some seconds; what did not get through is said."""
        if self._alive():
            assert self._thread is not None
            self._queue.put(None)
            self._thread.join(seconds)
            if self._thread.is_alive():
                self.dropped += max(0, self._queue.qsize() - 1)
                _LOG.warning("Sink %s hangs, and is left behind.", self.name)
        if self.dropped or self.errors:
            _LOG.warning(
                "Sink %s: %d entries dropped, %d errors.", self.name, self.dropped, self.errors
            )

    def _alive(self) -> bool:
        # After a fork the thread is not there, and what waits belongs to the parent.
        return self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()

    def _start(self) -> None:
        if self._thread is None:
            name = f"joma-sink-{self.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        opened = self._tried(lambda: self._sink.open(*self._where))
        waiting = True
        while waiting:
            try:
                item = self._queue.get(timeout=QUIET)
            except queue.Empty:
                if opened:
                    self._tried(self._sink.flush)
                continue
            waiting = self._handled(item, opened)
            self.cpu = time.thread_time()

    def _handled(self, item: Entry | Alert | threading.Event | None, opened: bool) -> bool:
        """Whether to go on."""
        sink = self._sink
        if item is None:
            if opened:
                self._tried(sink.close)
        elif isinstance(item, threading.Event):
            if opened:
                self._tried(sink.flush)
            item.set()
        elif not opened:
            self.dropped += 1
        elif isinstance(item, Alert):
            self._tried(lambda: sink.alert(item))
        else:
            self._tried(lambda: sink.log(item))
        return item is not None

    def _tried(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:
            self.errors += 1
            if self.errors == 1 or action == self._sink.close:
                _LOG.warning("Sink %s: %s: %s", self.name, type(error).__name__, error)
            return False
        return True

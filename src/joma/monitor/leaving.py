"""What happens to waiting records when a process is told to end: they are written first."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Leaving:
    """Calls `flush` on SIGTERM, and then whatever handled SIGTERM before.

    The handler that was there is called, never replaced: with the default one, the process ends
    as it would have. Signals can be handled from the main thread only; elsewhere, and where
    SIGTERM is ignored, this does nothing.
    """

    def __init__(self, flush: Callable[[], None]):
        """Starts at once; `done` ends it."""
        self._flush = flush
        self._pid = os.getpid()
        self._previous: Any = None
        previous = signal.getsignal(signal.SIGTERM)
        if _in_main_thread() and previous is not None and previous != signal.SIG_IGN:
            self._previous = previous
            signal.signal(signal.SIGTERM, self._terminated)

    def done(self) -> None:
        """Leave things as they were, unless someone has put a handler on top of this one."""
        ours = signal.getsignal(signal.SIGTERM) == self._terminated
        if ours and self._previous is not None and _in_main_thread():
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._flush()
        if callable(self._previous):
            self._previous(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

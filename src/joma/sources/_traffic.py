"""What a source has moved so far."""

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Traffic:
    """Bytes received, requests made (or reads of a file) and how many of them were retries.

    Counts from zero in every process: a pickled source does not carry it.
    """

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, size: int = 0, requests: int = 0, retries: int = 0) -> None:
        """Count; threads may count at once."""
        with self._lock:
            self.bytes += size
            self.requests += requests
            self.retries += retries

    def __reduce__(self) -> tuple[type["Traffic"], tuple[()]]:
        return Traffic, ()

"""The last few of something, so that listing tensors and then reading them costs one header."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT = 8


class Recent(Generic[T]):
    """What was made for the last revisions. Stays behind when its source is pickled."""

    def __init__(self) -> None:
        """Starts empty."""
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, revision: str, make: Callable[[], T]) -> T:
        """What belongs to a revision, made if it is not there."""
        with self._lock:
            if revision in self._kept:
                self._kept.move_to_end(revision)
                return self._kept[revision]
        made = make()
        with self._lock:
            self._kept[revision] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def __reduce__(self) -> tuple[type["Recent[T]"], tuple[()]]:
        return Recent, ()

"""What a sink is: a place that readings go to, which may be slow, or fail, or hang.

A sink lives in a thread of its own, so nothing it does can hold up training. What it raises is
counted and logged once. Only rank 0 of a distributed run has sinks.
"""

import abc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from joma.records.schema import Record

Level: TypeAlias = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Alert:
    """Something that a user should look at."""

    title: str
    """A few words, the same for the same kind of trouble."""
    text: str
    """A sentence with the numbers, and what to try."""
    step: int
    level: Level = "warning"
    layer: int | None = None


@dataclass(frozen=True)
class Entry:
    """What is handed to sinks at one step."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Flat names and numbers, for loggers; empty if there was no observation."""
    records: tuple[Record, ...] = ()
    """Every reading, head by head, and loss, learning rate and gradient norm of the steps since."""
    key: str = ""
    """What these records complete: written once, whatever is restarted."""


class AbstractSink(abc.ABC):
    """A place that readings go to. Every method is called from one thread, `open` first."""

    def open(self, run: str, out: Path) -> None:  # noqa: B027
        """Get ready. `out` is the folder of the records, for a sink that writes files."""

    @abc.abstractmethod
    def log(self, entry: Entry) -> None:
        """Take the numbers of a step."""

    def alert(self, alert: Alert) -> None:  # noqa: B027
        """Take an alert; a sink without alerts leaves it."""

    def flush(self) -> None:  # noqa: B027
        """Make durable what was taken. Called when it was quiet for a while, and on SIGTERM."""

    def close(self) -> None:  # noqa: B027
        """Finish; called once, after a flush."""

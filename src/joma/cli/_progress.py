"""A bar with throughput and time left, on a terminal; nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:  # imports torch
    from joma.sweep.run import State


@contextmanager
def bar(what: str) -> "Iterator[Callable[[State], None]]":
    """Hands out a function that moves the bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.fields[tasks]} tasks"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    quiet = not sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task(what, total=None, done=0, tasks="?")

        def move(state: "State") -> None:
            progress.update(
                task,
                total=state.total_bytes,
                completed=state.bytes,
                done=state.done,
                tasks=state.tasks,
            )

        yield move

"""What a benchmark is: a sentence, and rows of numbers, some of them with a bar."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured number, and the bar it must not exceed, or must reach if `at_least`."""

    name: str
    value: float | int
    unit: str = ""
    bar: float | int | None = None
    at_least: bool = False

    @property
    def passed(self) -> bool | None:
        """Whether the bar is cleared; `None` without one. A `nan` clears none."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        line = f"{self.name:66s} {self.value:12,.4g} {self.unit:4s}"
        if self.bar is not None:
            sign = ">=" if self.at_least else "<="
            line += f" {sign} {self.bar:g} {'ok' if self.passed else 'MISSED'}"
        return line.rstrip()


@dataclass(frozen=True)
class Bench:
    """One benchmark. Lives in one file, named after it; rows come as they are measured."""

    says: str
    run: Callable[..., Iterator[Row]]

"""What a reader asks for, and which row groups can hold it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from joma._core.errors import StoreError
from joma.records.arrow import SCHEMA
from joma.records.tables import ORDER

_Test: TypeAlias = Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True)
class Query:
    """A selection of rows. `None` is no condition; `steps` includes both ends."""

    run: str | None = None
    metrics: frozenset[str] | None = None
    layers: frozenset[int] | None = None
    steps: tuple[float, float] | None = None
    columns: tuple[str, ...] = tuple(SCHEMA.names)

    @classmethod
    def of(
        cls,
        metric: str | Iterable[str] | None,
        layers: Iterable[int] | None,
        steps: tuple[float | int | None, float | int | None] | None,
        columns: Sequence[str] | None,
    ) -> "Query":
        """The query as callers spell it, checked."""
        unknown = sorted(set(columns or ()) - set(SCHEMA.names))
        if unknown:
            raise StoreError(
                f"No record column named {unknown[0]!r}. Columns: {', '.join(SCHEMA.names)}."
            )
        low, high = steps or (None, None)
        return cls(
            metrics=None if metric is None else frozenset(several(metric)),
            layers=None if layers is None else frozenset(int(x) for x in layers),
            steps=None if steps is None else (_end(low, -math.inf), _end(high, math.inf)),
            columns=tuple(SCHEMA.names if columns is None else columns),
        )

    @property
    def needs(self) -> list[str]:
        """Columns to read: those asked for, and those to filter and sort by."""
        wanted = {"run", *ORDER, *self.columns}
        return [name for name in SCHEMA.names if name in wanted]

    def wants(self, run: str, metrics: Iterable[str]) -> bool:
        """Whether a part of this run with these metrics can hold rows of the answer."""
        return self.run in (None, run) and (
            self.metrics is None or not self.metrics.isdisjoint(metrics)
        )

    def groups(self, footer: Any) -> list[int]:
        """The row groups of a Parquet file that can hold rows of the answer."""
        place = {footer.schema.column(i).name: i for i in range(footer.num_columns)}
        tests = [(place[name], test) for name, test in self._ranges()]
        return [
            i
            for i in range(footer.num_row_groups)
            if all(_passes(footer.row_group(i).column(at).statistics, test) for at, test in tests)
        ]

    def filter(self, table: pa.Table) -> pa.Table:
        """The rows of the answer."""
        conditions = []
        if self.metrics is not None:
            wanted = pa.array(sorted(self.metrics), pa.string())
            conditions.append(pc.is_in(table["metric"].cast(pa.string()), wanted))
        if self.layers is not None:
            conditions.append(pc.is_in(table["layer"], pa.array(sorted(self.layers), pa.int32())))
        if self.steps is not None:
            low, high = self.steps
            conditions += [
                pc.greater_equal(table["step"], low),
                pc.less_equal(table["step"], high),
            ]
        return table.filter(reduce(pc.and_, conditions)) if conditions else table

    def _ranges(self) -> Iterator[tuple[str, _Test]]:
        """For each filtered column, whether values from `low` to `high` can pass."""
        for name, wanted in (("metric", self.metrics), ("layer", self.layers)):
            if wanted is not None:
                yield name, partial(_any_between, wanted)
        if self.steps is not None:
            first, last = self.steps
            yield "step", lambda low, high: bool(low <= last and high >= first)


def several(names: str | Iterable[str]) -> list[str]:
    """One name or many, as a list."""
    return [names] if isinstance(names, str) else list(names)


def _end(value: float | int | None, default: float) -> float:
    return default if value is None else float(value)


def _any_between(wanted: Iterable[Any], low: Any, high: Any) -> bool:
    return any(low <= x <= high for x in wanted)


def _passes(statistics: Any, test: _Test) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    return test(statistics.min, statistics.max)

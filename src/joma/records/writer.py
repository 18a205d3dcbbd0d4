"""The writing side: tables are checked when handed over, grouped, and committed run by run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock, Timer
from types import TracebackType
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from joma._core.errors import StoreError
from joma.records import arrow, disk, names, parts
from joma.records.arrow import SCHEMA
from joma.records.provenance import Provenance
from joma.records.query import several
from joma.records.tables import by_run, solid

Tasks: TypeAlias = str | Iterable[str] | Mapping[str, str | Iterable[str]]
"""Keys of the tasks that rows complete: of the table's one run, or `{run: keys}`."""

_NOTHING = solid(SCHEMA.empty_table())


class Batch(NamedTuple):
    """What goes into one part: a solid table of one run, and the tasks complete with it."""

    rows: pa.Table
    tasks: tuple[str, ...]


def checked(table: pa.Table, tasks: Tasks) -> tuple[pa.Table, dict[str, list[str]]]:
    """A table in the schema of records, and the keys of each run. Raises if a rule is broken."""
    if table.schema.names == SCHEMA.names:
        try:
            table = table.cast(SCHEMA)
        except (pa.ArrowException, ValueError) as error:
            raise StoreError(
                f"A record table has the types of joma.records.arrow.SCHEMA: {error}. "
                "joma.records.arrow.from_columns builds one."
            ) from error
    arrow.check(table)
    if isinstance(tasks, Mapping):
        return table, {run: several(keys) for run, keys in tasks.items()}
    keys = several(tasks)
    if not keys:
        return table, {}
    runs = pc.unique(table["run"].cast(pa.string())).to_pylist()
    if len(runs) != 1:
        raise StoreError(
            f"A task belongs to one run, and this table has {len(runs)}: {sorted(runs)[:5]}. "
            "Pass tasks={run: keys}."
        )
    return table, {runs[0]: keys}


def batches(table: pa.Table, tasks: Mapping[str, Iterable[str]]) -> dict[str, Batch]:
    """A checked table run by run. A run that has tasks and no rows gets an empty part."""
    rows = dict(by_run(solid(table))) if table.num_rows else {}
    runs = sorted({*rows, *(run for run, keys in tasks.items() if keys)})
    return {
        run: Batch(rows.get(run, _NOTHING), tuple(dict.fromkeys(tasks.get(run, ()))))
        for run in runs
    }


def commit(path: Path, run: str, batch: Batch, provenance: Provenance | None) -> str:
    """Write one part of a store durably. Gives its file name."""
    if provenance is not None:
        provenance.save(path)
    name, data = parts.encode(
        batch.rows,
        run,
        tasks=batch.tasks,
        provenance=() if provenance is None else (provenance.id,),
    )
    disk.publish(path / "runs" / names.directory(run) / name.file, data)
    return name.file


class Writer:
    """Groups appends into commits. `Store.writer` makes one.

    Rows are *acknowledged* when `flush` returns or the `with` block ends: from then on
    they survive a kill and a power cut. Other rows wait in memory, at most `seconds` long
    and at most `rows` of them plus one table; a kill loses them.
    """

    def __init__(
        self, path: Path, provenance: Provenance | None, *, seconds: float | int, rows: int
    ):
        """Commit `seconds` after the first row came, or when more than `rows` wait."""
        self._path = path
        self._provenance = provenance
        self._seconds = seconds
        self._limit = rows
        self._lock = Lock()
        self._tables: list[pa.Table] = []
        self._tasks: dict[str, list[str]] = {}
        self._ready: dict[str, Batch] = {}  # left over from a commit that failed
        self._timer: Timer | None = None
        self._closed = False

    def append(self, table: pa.Table, tasks: Tasks = ()) -> None:
        """Hand over rows, and the keys of the tasks that are complete with them.

        A key becomes visible together with the rows handed over with it, never before.
        Keys without a mapping belong to the one run of the table. If this raises, the table
        was not taken: it breaks a rule, or earlier rows could not be written.
        """
        table, keys = checked(table, tasks)
        with self._lock:
            if self._closed:
                raise StoreError("This writer is closed. Open another with Store.writer().")
            if self._ready or sum(t.num_rows for t in self._tables) >= self._limit:
                self._commit()
            self._tables.append(table)
            for run, more in keys.items():
                self._tasks.setdefault(run, []).extend(more)
            self._start()

    def flush(self) -> list[str]:
        """Make everything handed over durable. Gives the file names of the new parts.

        Runs that could not be written are kept, and the next flush or append tries again.
        """
        with self._lock:
            return self._commit()

    def close(self) -> None:
        """Flush, and take no more."""
        self.flush()
        self._closed = True

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Also after an error in the block: what was handed over was measured.
        self.close()

    def _commit(self) -> list[str]:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        done = self._write()
        rows = pa.concat_tables(self._tables) if self._tables else SCHEMA.empty_table()
        self._ready = batches(rows, self._tasks)
        self._tables, self._tasks = [], {}
        return done + self._write()

    def _write(self) -> list[str]:
        done = []
        for run, batch in list(self._ready.items()):
            done.append(commit(self._path, run, batch, self._provenance))
            del self._ready[run]
        return done

    def _start(self) -> None:
        if self._timer is None:
            self._timer = Timer(self._seconds, self._tick)
            self._timer.daemon = True
            self._timer.start()

    def _tick(self) -> None:
        with self._lock:
            self._timer = None
            try:
                self._commit()
            except StoreError:
                self._start()  # the rows are kept; an append or flush will say so aloud

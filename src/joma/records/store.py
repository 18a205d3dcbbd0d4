"""The records store: a directory of write-once Parquet parts that is its own ledger.

    store/runs/EleutherAI%2Fpythia-160m/00064392….parquet    one commit of one run
    store/provenance/3f9a….json                              what it was written under

A part is visible or it is not. There is no index to keep in step and nothing is changed
in place, so any number of processes on any number of machines may append at once.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from joma._core.errors import StoreError
from joma._core.extras import extra
from joma.records import compact, merge, names, view
from joma.records.arrow import SCHEMA
from joma.records.parts import Header
from joma.records.provenance import Provenance, saved
from joma.records.query import Query, several
from joma.records.scan import Cost, Scan
from joma.records.tables import ordered, solid
from joma.records.writer import Tasks, Writer, batches, checked, commit

Names: TypeAlias = str | Iterable[str] | None
"""One name, several, or all."""
Steps: TypeAlias = tuple[float | int | None, float | int | None] | None
"""First and last step, both included; an absent end is open."""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """A part that counts: where it lies and what it says about itself."""

    path: Path
    header: Header


class Store:
    """Records on disk.

    Opening costs nothing and creates nothing; the first append makes the directory.

    Example:
        >>> import tempfile
        >>> from joma.records import arrow
        >>> store = Store(tempfile.mkdtemp())
        >>> rows = arrow.from_columns(run="toy", metric="loss", step=[0, 1], value=[2.0, 1.5])
        >>> parts = store.append(rows, tasks="toy/first two")
        >>> store.read(run="toy", metric="loss")["value"].to_pylist(), store.completed()
        ([2.0, 1.5], {'toy/first two'})
    """

    def __init__(self, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None):
        """`provenance`, as `collect` gives it, is noted with every part written from here."""
        self.path = Path(path)
        self._provenance = None if provenance is None else Provenance.of(provenance)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def append(self, table: pa.Table, tasks: Tasks = ()) -> list[str]:
        """Write rows, durably: when this returns they survive a kill and a power cut.

        Rows of each run become one part, which appears whole, together with the keys of the
        tasks it completes. Keys without a mapping belong to the one run of the table; a table of
        several runs takes `{run: keys}` and is committed run by run, in order of name. A task
        that gave no rows is recorded too: `append(SCHEMA.empty_table(), {run: keys})`.

        Returns:
            The file names of the new parts.
        """
        found = batches(*checked(table, tasks))
        return [commit(self.path, run, batch, self._provenance) for run, batch in found.items()]

    def writer(self, *, seconds: float | int = 10, rows: int = 100_000) -> Writer:
        """A context manager that groups many small appends into few commits."""
        return Writer(self.path, self._provenance, seconds=seconds, rows=rows)

    def read(
        self,
        run: Names = None,
        metric: Names = None,
        layers: Iterable[int] | None = None,
        steps: Steps = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows as an Arrow table, sorted by run and then by `joma.records.tables.ORDER`.

        Only row groups that can hold the answer are read. A run or metric that is not
        there gives no rows. A damaged part is left out, and a `DamagedPartWarning` names it.
        """
        query = Query.of(metric, layers, steps, columns)
        found = [
            ordered(solid(pa.concat_tables(scan.tables)))
            for scan in self._scans(run, query)
            if any(t.num_rows for t in scan.tables)
        ]
        found.sort(key=lambda table: str(table["run"][0]))
        table = pa.concat_tables(found) if found else SCHEMA.empty_table()
        return table.unify_dictionaries().select(list(query.columns))

    def read_pandas(self, *args: Any, **selection: Any) -> Any:
        """The rows of `read` as a pandas frame; words are categories, an absent number is nan."""
        table = self.read(*args, **selection)
        with extra("pandas", packages=("pandas",), purpose="Reading records as a pandas frame"):
            return table.to_pandas()

    def explain(
        self,
        run: Names = None,
        metric: Names = None,
        layers: Iterable[int] | None = None,
        steps: Steps = None,
        columns: Sequence[str] | None = None,
    ) -> Cost:
        """Parts, row groups and bytes that `read` touches. It reads them, and counts."""
        scans = self._scans(run, Query.of(metric, layers, steps, columns))
        return sum((scan.cost for scan in scans), Cost())

    def runs(self) -> list[str]:
        """Names of the runs that have a part, sorted."""
        found = set()
        for directory, _ in self._places(None):
            name = names.run_of(directory.name)
            if name is None:  # too long for a directory: the parts know it
                found |= {h.run for h in view.headers(directory).values()}
            elif view.look(directory).parts:
                found.add(name)
        return sorted(found)

    def metrics(self, run: Names = None) -> list[str]:
        """Names of the metrics in these runs, sorted."""
        return sorted({m for part in self.parts(run) for m in part.header.metrics})

    def completed(self, run: Names = None) -> set[str]:
        """Keys of the tasks whose rows are here."""
        return {key for part in self.parts(run) for key in part.header.tasks}

    def parts(self, run: Names = None) -> list[PartInfo]:
        """The parts that count, oldest first within a run. Reads their headers."""
        return [
            PartInfo(Path(part.path), header)
            for directory, name in self._places(run)
            for part, header in view.headers(directory).items()
            if name in (None, header.run)
        ]

    def provenance(self) -> dict[str, dict[str, Any]]:
        """Every provenance noted here, by the id that the parts name."""
        return {found.id: json.loads(found.text) for found in saved(self.path)}

    def compact(self, run: Names = None, *, rows: int = 1_000_000) -> list[str]:
        """Put small parts together into parts of up to `rows` rows. Gives their file names.

        Takes about 400 bytes of memory per row of `rows`. Nothing is deleted: see `vacuum`.
        One process at a time may do this to a run; a second one is told so.
        """
        return [f for d, _ in self._places(run) if d.is_dir() for f in compact.compact(d, rows)]

    def vacuum(self, run: Names = None, *, older_than: float | int = 3600) -> list[str]:
        """Delete parts replaced `older_than` seconds ago, and leftovers of killed writers.

        A reader that started before the compaction needs the old parts until it is done, so
        `older_than` should exceed the longest read. Gives the names of the deleted files.
        """
        return [
            f for d, _ in self._places(run) if d.is_dir() for f in compact.vacuum(d, older_than)
        ]

    def merge(self, other: "Store | str | os.PathLike[str]", run: Names = None) -> list[str]:
        """Bring in the parts of another store that are not here. Merging twice adds nothing.

        Gives the file names of the parts that were copied.
        """
        source = other if isinstance(other, Store) else load(other)
        pairs = [(self.path / "runs" / d.name, d) for d, _ in source._places(run)]
        for ours, theirs in pairs:  # before anything is copied: all of it, or a refusal
            merge.lacking(view.look(ours), view.look(theirs))
        copied = [file for ours, theirs in pairs for file in merge.merge(ours, theirs)]
        for found in saved(source.path):
            found.save(self.path)
        return copied

    def verify(self, run: Names = None) -> dict[Path, str]:
        """Read every part in full. Gives the damaged ones, each with the reason.

        Deleting a damaged part makes its tasks incomplete again.
        """
        damaged: dict[Path, str] = {}
        for directory, _ in self._places(run):
            seen = view.look(directory)
            damaged |= {Path(path): why for path, why in seen.damaged.items()}
            for part in seen.parts:
                damaged |= {Path(p.path): why for p, why in Scan().read([part]).damaged.items()}
        return damaged

    def _scans(self, run: Names, query: Query) -> Iterator[Scan]:
        for directory, name in self._places(run):
            yield view.read(directory, replace(query, run=name))

    def _places(self, run: Names) -> list[tuple[Path, str | None]]:
        """The directory of each run asked for. Its name is absent when all are."""
        root = self.path / "runs"
        if run is not None:
            return [(root / names.directory(name), name) for name in dict.fromkeys(several(run))]
        return [(path, None) for path in sorted(root.iterdir())] if root.is_dir() else []


def load(path: str | os.PathLike[str]) -> Store:
    """The store at a path, to read. Unlike `Store(path)`, it must be there."""
    if not (Path(path) / "runs").is_dir():
        raise StoreError(
            f"No records store at {os.fspath(path)!r}: it has no folder 'runs'. "
            "Check the path; joma.records.store.Store(path) starts a new one."
        )
    return Store(path)

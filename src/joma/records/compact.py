"""Many small parts into few large ones, and the deletion of what they replaced, later.

A compacted part appears by one rename and lists the parts it stands for, so that at every
moment a reader sees either them or it. Replaced parts stay for readers that are already
under way; `vacuum` deletes them.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from joma.records import disk, names, parts, view
from joma.records.arrow import SCHEMA
from joma.records.parts import Header
from joma.records.scan import Part, Scan
from joma.records.tables import solid
from joma.records.view import View


def compact(directory: Path, rows: int) -> list[str]:
    """Put parts with fewer than `rows / 2` rows together, up to about `rows` in each.

    Gives the file names of the new parts. Holds the rows of one new part in memory. A
    damaged part is named in a warning, left where it is and not replaced.
    """
    done: list[str] = []

    def act(seen: View) -> tuple[None, Mapping[Part, str]]:
        headers, damaged = view.read_headers(seen)
        for group in _groups(headers, rows):
            if len(group) < 2:
                continue
            scan = Scan().read(group)
            damaged |= scan.damaged
            intact = [p for p in group if p not in scan.damaged]
            if len(intact) > 1:
                done.append(_replace(directory, seen, {p: headers[p] for p in intact}, scan))
        return None, damaged

    with disk.locked(directory):
        view.settled(directory, act)
    return done


def vacuum(directory: Path, older_than: float | int) -> list[str]:
    """Delete parts that were replaced `older_than` seconds ago or more, and stale leftovers.

    What stands for them is read in full first; if it is damaged, they stay. Gives the names
    of the deleted files.
    """
    with disk.locked(directory):
        seen = view.look(directory)
        hidden = {f: by for f in seen.files if (by := seen.owner.get(names.id_of(f)))}
        ripe = {by for by in hidden.values() if _age(Path(by.path)) >= older_than}
        sound = {by for by in ripe if not Scan().read([by]).damaged}
        replaced = [file for file, by in hidden.items() if by in sound]
        leftovers = [
            path.name for path in directory.glob(f"{disk.TEMPORARY}*") if _age(path) >= older_than
        ]
        for file in replaced + leftovers:
            (directory / file).unlink()
    return replaced + leftovers


def _groups(headers: Mapping[Part, Header], rows: int) -> Iterator[list[Part]]:
    """Parts to put together: neighbours in time, so that a new part spans few steps."""
    for run in sorted({h.run for h in headers.values()}):
        group: list[Part] = []
        total = 0
        for part, header in headers.items():
            if header.run != run or 2 * header.rows > rows:
                continue
            if total + header.rows > rows:
                yield group
                group, total = [], 0
            group.append(part)
            total += header.rows
        yield group


def _replace(directory: Path, seen: View, headers: Mapping[Part, Header], scan: Scan) -> str:
    """Publish one part that stands for these."""
    name, data = parts.encode(
        _rows(scan, sum(h.rows for h in headers.values())),
        next(iter(headers.values())).run,
        tasks=tuple(dict.fromkeys(key for h in headers.values() for key in h.tasks)),
        provenance=sorted({key for h in headers.values() for key in h.provenance}),
        replaces=sorted(frozenset().union(*(_leaves(seen, p) for p in headers))),
    )
    disk.publish(directory / name.file, data)
    return name.file


def _rows(scan: Scan, rows: int) -> pa.Table:
    """The scanned rows in one piece, no longer held by the scan."""
    tables, scan.tables = scan.tables, []
    table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    assert table.num_rows == rows, f"headers promise {rows} rows; found {table.num_rows}"
    return solid(table)


def _leaves(seen: View, part: Part) -> frozenset[str]:
    return seen.leaves.get(part, frozenset({part.name.id}))


def _age(path: Path) -> float:
    """Seconds since a file was written; less than none if it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return -1.0

"""Which parts of a run count: those that no compacted part stands for."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from joma._core.errors import DamagedPartWarning, StoreError
from joma.records import names
from joma.records.names import PartKind
from joma.records.parts import Header
from joma.records.query import Query
from joma.records.scan import Cost, Damaged, Footer, Part, Scan, footer, header

T = TypeVar("T")
_LOOKS = 20  # a reader that loses this many races with deletions gives up


@dataclass(frozen=True)
class View:
    """The parts in one run's directory at one moment."""

    parts: tuple[Part, ...]
    """Those that count, oldest first."""
    files: tuple[str, ...]
    """The names of all, whether they count or not."""
    owner: Mapping[str, Part]
    """For the id of a part that does not count, the compacted part that stands for it."""
    leaves: Mapping[Part, frozenset[str]]
    """Of each compacted part, the ids of the appended parts it stands for."""
    footers: Mapping[Part, Footer]
    """Of each compacted part, the footer, which had to be read to know that."""
    damaged: Mapping[str, str]
    """Paths of files that are not what was written, with the reason. They count for nothing."""


def look(
    directory: Path, damaged: Mapping[str, str] | None = None, cost: Cost | None = None
) -> View:
    """List a run's directory, leaving out what is already known to be damaged."""
    damaged = dict(damaged or {})
    files = _listing(directory)
    footers = {}
    for part in _parts(directory, filter(names.is_compacted, files), damaged):
        try:
            footers[part] = footer(part, cost or Cost())
        except Damaged as why:
            damaged[part.path] = str(why)
        except FileNotFoundError:
            continue  # vacuumed after we listed: who reads it will look again
    leaves = {part: frozenset(end.header.replaces) for part, end in footers.items()}
    owner = _owners(leaves)
    count = [file for file in files if names.id_of(file) not in owner]
    parts = tuple(_parts(directory, count, damaged))
    return View(parts, tuple(files), owner, leaves, footers, damaged)


def read(directory: Path, query: Query) -> Scan:
    """The rows of a run that a query asks for. Damaged parts are named in a warning."""
    cost = Cost()

    def scan(view: View) -> tuple[Scan, Mapping[Part, str]]:
        done = Scan(query, cost, view.footers).read(view.parts)
        return done, done.damaged

    return settled(directory, scan, cost)[1]


def headers(directory: Path) -> dict[Part, Header]:
    """The headers of a run's parts that count, oldest first."""
    return settled(directory, read_headers)[1]


def read_headers(view: View) -> tuple[dict[Part, Header], dict[Part, str]]:
    """The headers of the parts in view, and the parts that are damaged."""
    found, damaged = {}, {}
    for part in view.parts:
        try:
            known = view.footers.get(part)
            found[part] = known.header if known else header(part, Cost())
        except Damaged as why:
            damaged[part] = str(why)
    return found, damaged


def settled(
    directory: Path,
    act: Callable[[View], tuple[T, Mapping[Part, str]]],
    cost: Cost | None = None,
) -> tuple[View, T]:
    """Act on a view, and again on a fresh one if parts went away meanwhile.

    `act` gives a result and the parts it found damaged. A damaged compacted part no
    longer hides the parts it stands for: if they are still there, nothing is lost.
    """
    damaged: Mapping[str, str] = {}
    for _ in range(_LOOKS):
        view = look(directory, damaged, cost)
        try:
            result, bad = act(view)
        except FileNotFoundError:
            continue
        damaged = {**view.damaged, **{p.path: why for p, why in bad.items()}}
        if not any(p.name.kind is PartKind.COMPACTED for p in bad):
            for path, why in damaged.items():
                warnings.warn(
                    DamagedPartWarning(f"{path} is damaged and was left out: {why}."), stacklevel=2
                )
            return view, result
    raise StoreError(
        f"{directory} changed {_LOOKS} times while it was read: parts are deleted as fast as they "
        "are listed. Vacuum with a longer older_than."
    )


def _listing(directory: Path) -> list[str]:
    try:
        return sorted(f for f in os.listdir(directory) if f.endswith(".parquet") and f[0] != ".")
    except FileNotFoundError:
        return []  # a run that nobody wrote


def _parts(directory: Path, files: Iterable[str], damaged: dict[str, str]) -> Iterator[Part]:
    """Files as parts, but for damaged ones, to which it adds those that joma did not name."""
    for file in files:
        path = f"{directory}/{file}"
        if path in damaged:
            continue
        if name := names.parse(file):
            yield Part(path, name)
        else:
            damaged[path] = "joma gives no such name to a part"


def _owners(leaves: Mapping[Part, frozenset[str]]) -> dict[str, Part]:
    """Who stands for each appended part, and for each compacted part that is itself replaced.

    Of two compacted parts, the one that stands for more replaces the other.
    """
    owner: dict[str, Part] = {}
    for part in sorted(leaves, key=lambda p: (-len(leaves[p]), p.name.id)):
        above = {owner.get(leaf) for leaf in leaves[part]}
        if above == {None}:
            owner |= dict.fromkeys(leaves[part], part)
        elif len(above) == 1:
            owner[part.name.id] = owner[next(iter(leaves[part]))]
        else:
            rivals = sorted(p.path for p in above if p)
            raise StoreError(
                f"{part.path} and {', '.join(rivals)} stand for some of the same parts and for "
                "others, so rows would count twice. Two processes compacted this run without a "
                "working file lock: delete the newer one if the parts it replaces are still there."
            )
    return owner

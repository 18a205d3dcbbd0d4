"""What a page is made of: stores that were read, with what was found out about them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from joma._core.errors import JomaError, StoreError
from joma.analysis.diagnosis import Diagnosis, diagnose, facts_of
from joma.records.store import Store, load
from joma.report.panels import Panel

_DEPTH: Final = 4
"""Folders between the one that is named and a store: `joma-runs/NAME/PRESET/vN`."""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A claim and what became of it, in words."""

    name: str
    says: str
    verdict: str
    numbers: str
    control: str
    rule: str
    command: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """One store and what is known of it."""

    path: str
    table: pa.Table
    provenance: Mapping[str, Mapping[str, Any]]
    diagnoses: tuple[Diagnosis, ...]
    aside: tuple[tuple[str, str], ...] = ()
    """Tasks of a sweep that were put aside, with the reason."""
    title: str = ""
    claims: tuple[Claimed, ...] = ()
    panels: tuple[Panel, ...] = ()
    """Figures that someone else has made of these records."""
    remark: str = ""
    """What is to be said of them, such as why no claim was decided."""


def stores(folders: Sequence[Path]) -> list[Path]:
    """Every store in these folders; a folder may be a store itself, or hold several."""
    found: list[Path] = []
    for folder in folders:
        below = [folder] if _is_store(folder) else _below(folder, _DEPTH)
        if not below:
            raise StoreError(
                f"No records in {folder}: neither it nor a folder inside it is a records store. "
                "A monitor writes joma-records, an experiment joma-runs, a sweep what --out says."
            )
        found += below
    return list(dict.fromkeys(found))


def material(path: Path) -> Material:
    """A store, read and diagnosed."""
    store = load(path)
    table = store.read()
    if not table.num_rows:
        raise JomaError(f"The store {path} has no rows yet: there is nothing to report.")
    return Material(
        path=str(path),
        table=table,
        provenance=store.provenance(),
        diagnoses=diagnose(table, facts_of(store)),
        aside=_aside(store),
    )


def _aside(store: Store) -> tuple[tuple[str, str], ...]:
    files = sorted((store.path / "quarantine").glob("[!.]*.json"))
    noted = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return tuple((str(one["task"]), str(one["reason"])) for one in noted)


def _is_store(path: Path) -> bool:
    return (path / "runs").is_dir()


def _below(folder: Path, depth: int) -> list[Path]:
    if depth == 0 or not folder.is_dir():
        return []
    found: list[Path] = []
    for child in sorted(folder.iterdir()):
        if (
            child.is_dir()
            and not child.name.startswith(".")
            and not child.name.endswith("-training")
        ):
            found += [child] if _is_store(child) else _below(child, depth - 1)
    return found

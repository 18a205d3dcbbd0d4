"""Records of an experiment in one small file, to keep beside the code: `NAME/PRESET/vN.parquet`.

The file holds the rows of complete seeds and, as text, the provenance of each: the command, the
commit, the versions. Where the records went on the machine that made them is left out.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from joma.records.provenance import plain

PROVENANCE: Final = b"joma.provenance"
_PLACES: Final = ("--out", "--to")


def file_of(place: Path) -> Path:
    """The kept file of a store's place."""
    return place.with_name(f"{place.name}.parquet")


def save(table: pa.Table, provenance: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows with the provenance of their seeds."""
    noted = json.dumps([plain(_portable(p)) for p in provenance], sort_keys=True)
    rows = table.replace_schema_metadata({**(table.schema.metadata or {}), PROVENANCE: noted})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, compression="zstd", compression_level=19)


def load(path: Path) -> pa.Table:
    """The rows, as the store would give them."""
    return pq.read_table(path)


def provenance(path: Path) -> list[dict[str, Any]]:
    """How the rows were made, one entry per seed."""
    found: list[dict[str, Any]] = json.loads((pq.read_schema(path).metadata or {})[PROVENANCE])
    return found


def _portable(noted: dict[str, Any]) -> dict[str, Any]:
    """Without the folders of one machine: options that name them, and the path of the program."""
    words = list(noted.get("command") or ())
    kept = [w for i, w in enumerate(words) if w not in _PLACES and words[i - 1] not in _PLACES]
    return {**noted, "command": [Path(w).name if w.startswith("/") else w for w in kept]}

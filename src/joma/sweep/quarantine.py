"""Tasks that were put aside: one small file each, beside the records, until they are done."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joma.records import disk
from joma.sweep.job import Task

_FOLDER = "quarantine"


def note(store: Path, task: Task, keys: Sequence[str], reason: str) -> None:
    """Write down that a task was put aside, and why."""
    content = {"task": str(task), "reason": reason, "keys": list(keys)}
    disk.publish(_place(store, keys), json.dumps(content, indent=1).encode())


def lift(store: Path, keys: Sequence[str]) -> None:
    """Forget that a task was put aside."""
    if (store / _FOLDER).is_dir():
        _place(store, keys).unlink(missing_ok=True)


def listed(store: Path) -> list[dict[str, Any]]:
    """Every task that is put aside, with the reason."""
    return [json.loads(path.read_text()) for path in sorted((store / _FOLDER).glob("[!.]*.json"))]


def _place(store: Path, keys: Sequence[str]) -> Path:
    return (
        store / _FOLDER / f"{hashlib.sha256(json.dumps(list(keys)).encode()).hexdigest()[:24]}.json"
    )

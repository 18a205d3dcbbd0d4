"""Where rows come from: config, seed, versions, commit and command line, written once.

A provenance is a small JSON document named after its content, so that a thousand writers
with the same settings share one file, and every part names the one it was written under.
"""

import dataclasses
import functools
import hashlib
import json
import math
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from joma._core.errors import DamagedPartWarning
from joma.records import disk, redact

_PACKAGES = (
    "joma",
    "numpy",
    "scipy",
    "torch",
    "pyarrow",
    "safetensors",
    "transformers",
    "datasets",
    "huggingface-hub",
    "lightning",
    "ray",
)
_FOLDER = "provenance"


@dataclass(frozen=True)
class Provenance:
    """A provenance as it is stored. The id is the digest of the text."""

    id: str
    text: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Provenance":
        """Redacted, plain and in canonical order, so that equal content has an equal id."""
        clean = redact.settings(plain(content))
        text = json.dumps(clean, sort_keys=True, indent=1, ensure_ascii=False)
        return cls(_digest(text), text)

    def save(self, store: Path) -> None:
        """Write the file unless it is there."""
        path = store / _FOLDER / f"{self.id}.json"
        if not path.exists():
            disk.publish(path, self.text.encode())


def collect(
    *,
    config: Any = None,
    seed: int | None = None,
    command: Sequence[str] | None = None,
    directory: Path | None = None,
) -> dict[str, Any]:
    """What a run was made with: everything to run it again, and no secrets.

    Imports none of the packages whose versions it reports.

    Args:
        config: Settings: a mapping, a dataclass, or anything built of them.
        seed: The seed of the run.
        command: The command line; `sys.argv` if absent. The path of the program is cut.
        directory: Where to ask git for the commit; the working directory if absent.
            `-dirty` at the end of the commit means that files differed from it.
    """
    program, *rest = sys.argv if command is None else command or [""]
    found = {
        "config": config,
        "seed": seed,
        "command": redact.arguments([Path(program).name, *rest]),
        "commit": _commit(directory or Path.cwd()),
        "versions": {p: v for p in _PACKAGES if (v := _version(p))},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    clean: dict[str, Any] = redact.settings(plain(found))
    return clean


def saved(store: Path) -> list[Provenance]:
    """Every provenance of a store. A damaged one is named in a warning and left out."""
    found = []
    for path in sorted((store / _FOLDER).glob("[!.]*.json")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if _digest(text) == path.stem:
            found.append(Provenance(path.stem, text))
        else:
            warnings.warn(
                DamagedPartWarning(f"{path} is damaged and was left out: its text has another id."),
                stacklevel=2,
            )
    return found


def plain(value: Any) -> Any:
    """A value in JSON's terms. What JSON cannot say is written as Python prints it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=repr)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(directory: Path) -> str | None:
    """The commit checked out in a directory; `None` outside git, or without it."""
    question = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(
            question, cwd=directory, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None

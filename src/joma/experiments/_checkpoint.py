"""Where a training run stands, on disk: written whole or not at all, the last two kept.

    folder/000002000-9f86d081884c7d65.pt    state after 2000 steps; the end is the file's SHA-256

Files hold tensors, numbers and words, and are read with `weights_only=True`.
"""

import hashlib
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from joma.records import disk

KEPT: Final = 2
"""One to go on from, and one to go back to if that is damaged or lost its records."""


class ResumeWarning(UserWarning):
    """A run goes on, but not from its last checkpoint, or not with the same arithmetic."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that a run needs to go on. Data and dropout are functions of seed and step."""

    step: int
    settings: dict[str, str]
    """What the run was started with, so that another one is not continued by mistake."""
    threads: int
    """Of torch, when it was saved."""
    model: dict[str, Any]
    optimiser: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint durably, then delete all but the last `KEPT`."""
    file = io.BytesIO()
    torch.save(vars(checkpoint), file)
    data = file.getvalue()
    path = folder / f"{checkpoint.step:09d}-{_short(data)}.pt"
    disk.publish(path, data)
    for old in _files(folder)[KEPT:]:
        if old != path:
            old.unlink()
    return path


def saved(folder: Path) -> Iterator[tuple[Path, Checkpoint | None]]:
    """Checkpoints of a folder, the furthest first; in place of a damaged one there is none."""
    for path in _files(folder):
        data = path.read_bytes()
        whole = path.stem.partition("-")[2] == _short(data)
        yield (
            path,
            Checkpoint(**torch.load(io.BytesIO(data), weights_only=True)) if whole else None,
        )


def sweep(folder: Path) -> None:
    """Delete what killed writers left under temporary names."""
    for path in folder.glob(f"{disk.TEMPORARY}*"):
        path.unlink()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named tensors: equal if and only if all their bits are."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def warn_of_threads(checkpoint: Checkpoint) -> None:
    """Say so if sums will now be split in another way than when the checkpoint was saved."""
    threads = torch.get_num_threads()
    if threads != checkpoint.threads:
        warnings.warn(
            f"The run was at {checkpoint.threads} torch threads and goes on with {threads}: its "
            "last bits may differ from an uninterrupted run's. "
            f"torch.set_num_threads({checkpoint.threads}) keeps them.",
            ResumeWarning,
            stacklevel=4,
        )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pt"), reverse=True)


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]

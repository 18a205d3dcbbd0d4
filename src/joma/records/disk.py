"""Bytes that appear whole and durable or not at all, and a lock that dies with its owner."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from joma._core.errors import StoreError

TEMPORARY = ".tmp-"
"""Starts the name of a file that is being written. It was never acknowledged."""


def publish(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, sync it, rename it, sync the directory.

    When this returns, the file survives a power cut. When it raises, there is no file.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.urandom(4).hex()}-{path.name}")
    written = temporary
    try:
        _make(path.parent)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        written = path
        _sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            written.unlink()
        if isinstance(error, OSError):
            raise StoreError(
                f"Could not write {path} ({len(data)} bytes): {error.strerror or error}. "
                "Nothing of it was kept; make room or mend the path, then append again."
            ) from error
        raise


def read(path: str) -> bytes:
    """A whole file. For 20,000 small ones, half the time of `Path.read_bytes`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's upkeep lock. The kernel lets it go when the process dies."""
    _make(directory)
    with open(directory / ".lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{directory} is locked: another process compacts, merges or vacuums this run. "
                "Try again when it is done; reading and appending go on meanwhile."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{directory} cannot be locked: {error.strerror}. Compact, merge and vacuum need a "
                "file system with flock; run them where the store is on a local disk."
            ) from error
        yield


def _make(directory: Path) -> None:
    """Create a directory, durably: its name lives in its parent."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync(directory.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

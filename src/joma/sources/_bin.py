"""The tensors of a zip-format `.bin` file: its directory, its table of contents, its entries."""

import math

from joma.sources import _pickle, _zip
from joma.sources._bytes import AbstractFiles, fetched
from joma.sources._dtypes import itemsize
from joma.sources._errors import HostileFileError
from joma.sources._index import FileInfo, TensorInfo
from joma.sources._pickle import View
from joma.sources._safetensors import checked_name
from joma.sources._zip import Entry

_NEAR = 4096  # bytes between two entries that are still read with one request


def header(files: AbstractFiles, file: FileInfo) -> tuple[dict[str, TensorInfo], int]:
    """The tensors of a `.bin` file, and how many bytes it took to know."""
    entries, cost = _zip.directory(files, file)
    tables = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(tables) != 1:
        raise HostileFileError(
            f"{file.name} is a zip file with {len(tables)} entries */data.pkl; torch writes one."
        )
    root = tables[0].removesuffix("data.pkl")
    table, order = entries[tables[0]], entries.get(f"{root}byteorder")
    if table.size > _pickle.LARGEST:
        raise HostileFileError(
            f"{file.name}: its table of contents has {table.size} bytes; above {_pickle.LARGEST} "
            "none is read. Save the weights in several files, or as safetensors."
        )
    slots = _slots(files, file, [table] if order is None else [table, order])
    found = _pickle.views(bytes(slots[0]), file.name)
    if order is not None and bytes(slots[1]) != b"little":
        raise HostileFileError(
            f"{file.name} has byte order {bytes(slots[1])[:20]!r}; only b'little' is read."
        )
    tensors = {n: _tensor(n, v, root, entries, file) for n, v in found.items() if type(v) is View}
    if not tensors:
        raise HostileFileError(
            f"{file.name} has no tensors at its top level; its keys are "
            f"{[str(key)[:40] for key in list(found)[:8]]}. Save its state dict by itself."
        )
    return tensors, cost + sum(len(slot) for slot in slots)


def _slots(files: AbstractFiles, file: FileInfo, entries: list[Entry]) -> list[memoryview]:
    """Contents of one or two small entries, in one request if they are neighbours."""
    for entry in entries:
        if entry.stop - entry.start > 2 * _pickle.LARGEST:
            raise HostileFileError(f"{file.name}: there is a hole after entry {entry.name[:80]!r}.")
    start, stop = min(e.start for e in entries), max(e.stop for e in entries)
    if stop - start <= sum(e.stop - e.start for e in entries) + _NEAR:
        text = memoryview(fetched(files, file, start, stop))
        parts = [text[e.start - start : e.stop - start] for e in entries]
    else:
        parts = [memoryview(fetched(files, file, e.start, e.stop)) for e in entries]
    return [_zip.content(e, part, file.name) for e, part in zip(entries, parts, strict=True)]


def _tensor(
    name: object, view: View, root: str, entries: dict[str, Entry], file: FileInfo
) -> TensorInfo:
    checked = checked_name(name, file.name)
    storage, size = view.storage, itemsize(view.storage.dtype)
    entry = entries.get(f"{root}data/{storage.key}")
    if entry is None or entry.size != storage.numel * size:
        there = "nothing" if entry is None else f"{entry.size} bytes"
        raise HostileFileError(
            f"{file.name}: tensor {checked!r} needs {storage.numel} {storage.dtype} of storage "
            f"{storage.key[:40]!r}, where there is {there}. The file is damaged."
        )
    numel = math.prod(view.shape)
    reach = view.offset + 1 + sum((n - 1) * s for n, s in zip(view.shape, view.stride, strict=True))
    if numel > storage.numel or (numel and reach > storage.numel):
        raise HostileFileError(
            f"{file.name}: tensor {checked!r} of shape {view.shape} and strides {view.stride} "
            f"walks past the {storage.numel} elements of its storage, or repeats them."
        )
    return TensorInfo(
        checked,
        storage.dtype,
        view.shape,
        file.name,
        entry.start,
        entry.stop,
        numel * size,
        view.stride,
        view.offset,
        entry.size,
        entry.name,
    )

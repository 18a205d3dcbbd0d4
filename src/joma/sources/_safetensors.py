"""The header of a safetensors file, read from its first bytes and checked before it is believed.

The safetensors library opens whole local files only; this reads ranges, of files anywhere. It
accepts what the library accepts, except headers above `LARGEST` and names that could be markup.
"""

import math
import re
from typing import Any

from joma.sources._bytes import AbstractFiles, fetched, first_guess
from joma.sources._dtypes import DTYPES, itemsize
from joma.sources._errors import HostileFileError
from joma.sources._index import FileInfo, TensorInfo
from joma.sources._json import parsed

LARGEST = 8_000_000
"""Bytes of a header: some 60,000 tensors. JSON can blow the library's 100 MB up to gigabytes."""

_NAME = re.compile(r"[A-Za-z0-9_.:/+@\[\](),$# -]{1,400}")


def header(files: AbstractFiles, file: FileInfo) -> tuple[dict[str, TensorInfo], int]:
    """The tensors of a safetensors file, and how many bytes it took to know."""
    start = fetched(files, file, 0, first_guess(file.size))
    if len(start) < 8:
        raise HostileFileError(
            f"{file.name} has {file.size} bytes; a safetensors file has 8 or more."
        )
    length = int.from_bytes(start[:8], "little")
    if length > min(LARGEST, file.size - 8):
        raise HostileFileError(
            f"{file.name} claims a header of {length} bytes, but has {file.size} bytes itself, and "
            f"headers above {LARGEST} bytes are not read. It is damaged, or not safetensors."
        )
    rest = fetched(files, file, len(start), 8 + length) if len(start) < 8 + length else b""
    text = (start + rest)[8 : 8 + length]
    return _tensors(parsed(text, f"The header of {file.name}"), file, 8 + length), len(start + rest)


def checked_name(name: Any, file: str) -> str:
    """A tensor's name, if it is one that may be printed and stored."""
    if isinstance(name, str) and _NAME.fullmatch(name) and ".." not in name:
        return name
    raise HostileFileError(
        f"{file} names a tensor {str(name)[:80]!r}. Names of tensors have letters, digits and "
        "._:/+@[](),$#- here; anything else might be markup or a path. Nothing of it is used."
    )


def _tensors(entries: dict[str, Any], file: FileInfo, base: int) -> dict[str, TensorInfo]:
    entries = {name: entry for name, entry in entries.items() if name != "__metadata__"}
    found = {name: _tensor(name, entry, file, base) for name, entry in entries.items()}
    end, last = base, "the header"
    for info in sorted(found.values(), key=lambda info: (info.start, info.stop)):
        if info.start != end:
            gap = "overlaps" if info.start < end else "leaves a hole after"
            raise HostileFileError(
                f"{file.name}: {info.name!r} {gap} {last} (bytes {info.start} and {end}). "
                "Tensors of a safetensors file follow each other; this one is damaged."
            )
        end, last = info.stop, repr(info.name)
    if end != file.size:
        raise HostileFileError(
            f"{file.name} has {file.size} bytes, its tensors end at byte {end}. It is cut short or "
            "has something appended; fetch or save it again."
        )
    return found


def _tensor(name: str, entry: Any, file: FileInfo, base: int) -> TensorInfo:
    checked_name(name, file.name)
    where = f"{file.name}, tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise HostileFileError(f"{where}: an entry has dtype, shape and data_offsets, and no more.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise HostileFileError(
            f"{where}: dtype {str(dtype)[:40]!r} is unknown. Known: {', '.join(DTYPES)}."
        )
    if not _naturals(shape) or len(shape) > 16 or not _naturals(offsets) or len(offsets) != 2:
        raise HostileFileError(
            f"{where}: shape and data_offsets must be lists of whole numbers >= 0."
        )
    start, stop = offsets
    size = math.prod(shape) * itemsize(dtype)
    if stop - start != size or base + stop > file.size:
        raise HostileFileError(
            f"{where}: {dtype} of shape {shape} has {size} bytes, data_offsets {offsets} give "
            f"{stop - start}, in a file of {file.size} bytes. The header is damaged."
        )
    return TensorInfo(name, dtype, tuple(shape), file.name, base + start, base + stop, size)


def _naturals(found: Any) -> bool:
    return isinstance(found, list) and all(type(n) is int and 0 <= n < 2**63 for n in found)

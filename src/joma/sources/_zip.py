"""The directory of a zip file, read from its end: where each entry lies, and that it is stored.

Entries that are compressed are refused: torch stores them plain, and a plain entry cannot be
larger than the file it is in.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from joma.sources._bytes import AbstractFiles, fetched, first_guess
from joma.sources._errors import HostileFileError
from joma.sources._index import FileInfo

LARGEST = 16_000_000
"""Bytes of a directory: some 100,000 entries."""

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_WIDE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored file: its bytes are between `start` and `stop`, after a local header."""

    name: str
    start: int
    stop: int
    size: int


def directory(files: AbstractFiles, file: FileInfo) -> tuple[dict[str, Entry], int]:
    """The entries of a zip file by name, and how many bytes it took to know."""
    guess = max(first_guess(file.size), min(file.size, 22 + 20 + 56))
    tail = fetched(files, file, file.size - guess, file.size)
    start, size = _where(tail, file)
    if size > LARGEST:
        raise HostileFileError(
            f"{file.name} claims a zip directory of {size} bytes; above {LARGEST} none is read."
        )
    first = file.size - len(tail)
    if start >= first:
        text, extra = tail[start - first : start - first + size], b""
        if len(text) < size:
            raise HostileFileError(f"{file.name}: its zip directory runs past its end.")
    else:
        extra = fetched(files, file, start, min(start + size, first))
        text = (extra + tail)[:size]
    return _entries(text, file, start), len(tail) + len(extra)


def content(entry: Entry, slot: memoryview, file: str) -> memoryview:
    """The bytes of an entry, given those from its local header on."""
    if len(slot) < _LOCAL.size or bytes(slot[:4]) != b"PK\x03\x04":
        raise HostileFileError(f"{file}: entry {entry.name!r} has no local header; file damaged.")
    names, extras = _LOCAL.unpack(slot[: _LOCAL.size])[-2:]
    start = _LOCAL.size + names + extras
    name = bytes(slot[_LOCAL.size : _LOCAL.size + names])
    if name != entry.name.encode() or start + entry.size > len(slot):
        raise HostileFileError(
            f"{file}: the local header of entry {entry.name!r} does not agree with the directory."
        )
    return slot[start : start + entry.size]


def _where(tail: bytes, file: FileInfo) -> tuple[int, int]:
    """Start and size of the directory."""
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < _END.size:
        raise HostileFileError(
            f"{file.name} is not a zip file. Files that torch wrote before 1.6 are plain pickles, "
            "which cannot be read without running them: load it once where you trust it and save "
            "it again, best as safetensors."
        )
    *_, size, start, _ = narrow = _END.unpack_from(tail, place)
    locator = place - _LOCATOR64.size
    if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":
        record = _LOCATOR64.unpack_from(tail, locator)[2] - (file.size - len(tail))
        if not 0 <= record <= len(tail) - _END64.size or tail[record : record + 4] != b"PK\x06\x06":
            raise HostileFileError(f"{file.name}: its zip64 record is not where it should be.")
        *_, size, start = _END64.unpack_from(tail, record)
        # Readers differ in which of the two they believe, so they must agree.
        if narrow[5] not in (size, _WIDE) or narrow[6] not in (start, _WIDE):
            raise HostileFileError(f"{file.name}: its two zip directories do not agree.")
    if start + size > file.size:
        raise HostileFileError(
            f"{file.name}: its zip directory would lie at bytes {start} to {start + size} of "
            f"{file.size}. It is damaged or cut short."
        )
    return start, size


def _entries(text: bytes, file: FileInfo, end: int) -> dict[str, Entry]:
    """Entries of the directory; each ends where the next begins, so none can overlap."""
    found: dict[str, tuple[int, int]] = {}
    place = 0
    while place < len(text):
        name, header, size, place = _entry(text, place, file)
        if name in found:
            raise HostileFileError(f"{file.name}: zip entry {name[:80]!r} stands twice.")
        found[name] = header, size
    starts = sorted({header for header, _ in found.values()})
    if len(starts) < len(found):
        raise HostileFileError(f"{file.name}: two zip entries share one place.")
    following: Mapping[int, int] = dict(zip(starts, [*starts[1:], end], strict=True))
    entries = {n: Entry(n, at, following[at], size) for n, (at, size) in found.items()}
    for entry in entries.values():
        if entry.start + _LOCAL.size + entry.size > entry.stop:
            raise HostileFileError(
                f"{file.name}: zip entry {entry.name[:80]!r} ({entry.size} B) overlaps the next."
            )
    return entries


def _entry(text: bytes, place: int, file: FileInfo) -> tuple[str, int, int, int]:
    """Name, place of the local header and size of one entry; where the next one stands."""
    if len(text) - place < _ENTRY.size or text[place : place + 4] != b"PK\x01\x02":
        raise HostileFileError(f"{file.name}: its zip directory is damaged.")
    fields = _ENTRY.unpack_from(text, place)
    flags, method = fields[3], fields[4]
    packed, size, names, extras, comments = fields[8:13]
    header = fields[16]
    after = place + _ENTRY.size
    following = after + names + extras + comments
    if following > len(text):
        raise HostileFileError(f"{file.name}: its zip directory is cut short.")
    name = text[after : after + names].decode("utf-8", "replace")
    packed, size, header = _widened(
        text[after + names : after + names + extras], packed, size, header
    )
    if method or packed != size or flags & 1:
        raise HostileFileError(
            f"{file.name}: zip entry {name[:80]!r} is compressed or encrypted ({packed} bytes for "
            f"{size}). torch stores entries plain; this file is not opened."
        )
    return name, header, size, following


def _widened(extra: bytes, packed: int, size: int, header: int) -> tuple[int, int, int]:
    """Values above 4 GB from the zip64 field."""
    wide = [size == _WIDE, packed == _WIDE, header == _WIDE]
    while len(extra) >= 4 and any(wide):
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{min(length, len(extra) - 4) // 8}Q", extra, 4))
            size = next(numbers, size) if wide[0] else size
            packed = next(numbers, packed) if wide[1] else packed
            header = next(numbers, header) if wide[2] else header
            break
        extra = extra[4 + length :]
    return packed, size, header

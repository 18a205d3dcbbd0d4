"""Reading parts: many small ones at once, large ones by row group, damaged ones by name."""

import errno
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from joma.records import disk, packed, parts
from joma.records.names import PartKind, PartName
from joma.records.parts import Header, Small
from joma.records.query import Query
from joma.records.tables import TEXT

_TAIL = 16_384  # bytes first read from the end of a large part; most footers fit
_LOT = 8 << 20  # bytes of packed rows that become one table


class Damaged(Exception):
    """A file is not what was written. Says why."""


class Part(NamedTuple):
    """A part and where it lies."""

    path: str
    name: PartName


@dataclass(slots=True)
class Cost:
    """What a query read from disk, counted while it read."""

    parts: int = 0
    row_groups: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.parts + other.parts,
            self.row_groups + other.row_groups,
            self.bytes + other.bytes,
        )


class Footer(NamedTuple):
    """The end of a large part: what it says about itself, and where its row groups are."""

    header: Header
    parquet: Any


@dataclass(slots=True)
class Scan:
    """One pass over parts for one query."""

    query: Query = field(default_factory=Query)
    cost: Cost = field(default_factory=Cost)
    footers: Mapping[Part, Footer] = field(default_factory=dict)
    """Those that were read before."""
    tables: list[pa.Table] = field(default_factory=list)
    """The answer, in the order of the parts."""
    damaged: dict[Part, str] = field(default_factory=dict)
    """Parts that are not what was written, each with the reason."""
    _lot: list[packed.Packed] = field(default_factory=list)

    def read(self, parts: Iterable[Part]) -> "Scan":
        """Add the rows of these parts. A part that is gone raises `FileNotFoundError`."""
        waiting = 0
        for part in parts:
            self.cost.parts += 1
            try:
                if part.name.kind is PartKind.SMALL:
                    waiting += self._small(part)
                else:
                    waiting = self._unpack()
                    self._large(part)
            except Damaged as why:
                self.damaged[part] = str(why)
            if waiting > _LOT:
                waiting = self._unpack()
        self._unpack()
        return self

    def _small(self, part: Part) -> int:
        small = Small.of(_whole(part, self.cost))
        if not self.query.wants(small.header.run, small.header.metrics):
            return 0
        self._lot.append(small.rows())
        return small.size

    def _unpack(self) -> int:
        if self._lot:
            table = packed.unpack(self._lot, self.query.metrics, self.query.needs)
            self.tables.append(self.query.filter(table))
            self._lot = []
        return 0

    def _large(self, part: Part) -> None:
        header, parquet = self.footers.get(part) or footer(part, self.cost)
        if not self.query.wants(header.run, header.metrics):
            return
        groups = self.query.groups(parquet)
        if groups:
            table = _columns(part, parquet, groups, self.query.needs, self.cost)
            self.tables.append(self.query.filter(table))
            self.cost.row_groups += len(groups)


def header(part: Part, cost: Cost) -> Header:
    """What a part says about itself; `Damaged` if it is not what was written."""
    if part.name.kind is PartKind.SMALL:
        return Small.of(_whole(part, cost)).header
    return footer(part, cost).header


def footer(part: Part, cost: Cost) -> Footer:
    """The footer of a large part; `Damaged` if it is not what was written."""
    with _opened(part, cost) as file:
        size = os.fstat(file.fileno()).st_size
        tail = file.end(min(size, _TAIL))
        length = parts.footer_size(tail)
        if len(tail) < length <= size:
            tail = file.end(length)
        tail = tail[-length:]
        if zlib.crc32(tail) != part.name.checksum:
            raise Damaged(f"its footer does not have the checksum in its name ({size} bytes)")
        parquet = pq.read_metadata(pa.BufferReader(tail))
        return Footer(parts.header_of(parquet), parquet)


def _whole(part: Part, cost: Cost) -> bytes:
    try:
        data = disk.read(part.path)
    except OSError as error:
        raise _meaning(error) from error
    cost.bytes += len(data)
    if zlib.crc32(data) != part.name.checksum:
        raise Damaged(f"its {len(data)} bytes do not have the checksum in its name")
    return data


class _Counted(io.FileIO):
    """A file that counts what is read from it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data

    def end(self, length: int) -> bytes:
        """The last bytes."""
        self.seek(-length, os.SEEK_END)
        return self.read(length)


@contextmanager
def _opened(part: Part, cost: Cost) -> Iterator[_Counted]:
    """A file to read from; what fails meanwhile is damage."""
    with _Counted(part.path) as file:
        try:
            yield file
        except (OSError, pa.ArrowException, ValueError, KeyError) as error:
            raise _meaning(error) from error
        finally:
            cost.bytes += file.count


def _meaning(error: Exception) -> Exception:
    """Damage, unless the file is gone or not ours to read."""
    match error:
        case FileNotFoundError() | PermissionError():
            return error
        case OSError(errno=errno.ESTALE):
            return FileNotFoundError(*error.args)  # deleted on another machine
        case _:
            return Damaged(str(error).partition("\n")[0])


def _columns(part: Part, parquet: Any, groups: list[int], names: list[str], cost: Cost) -> pa.Table:
    with _opened(part, cost) as file:
        reader = pq.ParquetFile(
            pa.PythonFile(file, mode="r"),
            metadata=parquet,
            read_dictionary=TEXT,
            page_checksum_verification=True,
            pre_buffer=False,  # else it reads the gaps between columns too
        )
        return reader.read_row_groups(groups, columns=names)

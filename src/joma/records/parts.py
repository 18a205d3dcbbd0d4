"""One part: rows of one run in one write-once Parquet file, with a header and checksums.

Large parts are Parquet as everyone writes it. A small part has its header and a packed
copy of its rows (see `packed`) between the last page and the footer, where Parquet
readers do not look:

    PAR1 pages | records (lz4) | header, words (JSON) | sizes, layout | footer, size PAR1
"""

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from joma._core.errors import StoreError
from joma.records import names, packed
from joma.records.arrow import SCHEMA
from joma.records.names import PartKind, PartName
from joma.records.schema import SCHEMA_VERSION
from joma.records.tables import TEXT, ordered, solid, words

SMALL = 1024
"""Rows up to which a part carries a packed copy, and under which no row group is cut off."""
GROUP = 65_536
"""Rows of the largest row group."""

_WRITING = {
    "compression": "zstd",
    "write_page_checksum": True,
    "store_schema": False,
    # Statistics only where queries look: a third of the footer.
    "write_statistics": ["metric", "layer", "step"],
    "use_dictionary": [n for n in SCHEMA.names if n not in ("value", "lower", "upper")],
    "use_byte_stream_split": ["value", "lower", "upper"],
}
_SIZES = struct.Struct("<IIII")  # packed records, records, JSON, layout
_CODEC = "lz4_raw"
_decode = json.JSONDecoder().raw_decode  # half the time of `json.loads`, which matters 20,000 times


class Header(NamedTuple):
    """What a part says about itself."""

    run: str
    rows: int
    metrics: Sequence[str]
    tasks: Sequence[str] = ()
    """Keys of the tasks this part completes."""
    provenance: Sequence[str] = ()
    """Ids of the provenance its rows were written under."""
    replaces: Sequence[str] = ()
    """Ids of the appended parts a compacted part stands for."""
    version: int = SCHEMA_VERSION

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Header":
        """A header from its JSON; refuses one that a newer joma wrote."""
        if found["version"] > SCHEMA_VERSION:
            raise StoreError(
                f"A part of run {found.get('run')!r} has schema version {found['version']}; this "
                f"joma reads up to {SCHEMA_VERSION}. Upgrade joma to read this store."
            )
        return cls(**found)


def encode(
    table: pa.Table,
    run: str,
    *,
    tasks: Sequence[str] = (),
    provenance: Sequence[str] = (),
    replaces: Sequence[str] = (),
) -> tuple[PartName, bytes]:
    """The name and the bytes of a part from a solid table of one run.

    A part that replaces others is a compacted one.
    """
    table = ordered(table)
    header = Header(
        run=run,
        rows=table.num_rows,
        metrics=words(table, "metric"),
        tasks=tasks,
        provenance=provenance,
        replaces=replaces,
        version=SCHEMA_VERSION,
    )
    data = _parquet(table, header)
    if replaces:
        kind = PartKind.COMPACTED
    elif table.num_rows > SMALL:
        kind = PartKind.LARGE
    else:
        kind = PartKind.SMALL
        end = len(data) - footer_size(data)
        data = b"".join((data[:end], _copy(table, header), data[end:]))
    covered = data if kind is PartKind.SMALL else data[-footer_size(data) :]
    return PartName(names.new_id(), kind, zlib.crc32(covered)), data


def footer_size(tail: bytes) -> int:
    """Bytes of the Parquet footer at the end of a file, its size and magic included."""
    return int.from_bytes(tail[-8:-4], "little") + 8


def header_of(footer: Any) -> Header:
    """The header in a Parquet footer."""
    return Header.of(json.loads((footer.metadata or {})[b"joma.part"]))


class Small(NamedTuple):
    """A small part, opened: its header, and its rows still packed and compressed."""

    header: Header
    words: list[str]
    records: memoryview
    size: int
    layout: int
    data: bytes

    @classmethod
    def of(cls, data: bytes) -> "Small":
        """The file taken apart. Its checksum must have been found to hold."""
        end = len(data) - footer_size(data) - _SIZES.size
        short, size, text, layout = _SIZES.unpack_from(data, end)
        found, vocabulary = _decode(data[end - text : end].decode())[0]
        records = memoryview(data)[end - text - short : end - text]
        return cls(Header.of(found), vocabulary, records, size, layout, data)

    def rows(self) -> packed.Packed:
        if self.layout != packed.LAYOUT:  # packed for other columns: read Parquet's
            columns = pq.ParquetFile(pa.py_buffer(self.data), read_dictionary=TEXT).read()
            return packed.pack(solid(columns))
        return packed.Packed(self.words, pa.decompress(self.records, self.size, _CODEC))


def _parquet(table: pa.Table, header: Header) -> bytes:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, **_WRITING) as writer:
        for start, stop in _groups(table):
            writer.write_table(table.slice(start, stop - start), row_group_size=GROUP)
        writer.add_key_value_metadata(
            {"joma.schema_version": str(header.version), "joma.part": json.dumps(header._asdict())}
        )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _groups(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Row groups end where a metric ends, so that reading one touches no other."""
    metric = table["metric"].combine_chunks().indices.to_numpy()
    borders = [0, *(np.flatnonzero(np.diff(metric)) + 1).tolist(), table.num_rows]
    start = 0  # of metrics too short for a group each, which share one
    for first, stop in pairwise(borders):
        if stop - first >= SMALL and start < first:
            yield start, first
            start = first
        if stop - start >= SMALL or stop == table.num_rows:
            yield start, stop
            start = stop


def _copy(table: pa.Table, header: Header) -> bytes:
    vocabulary, records = packed.pack(table)
    text = json.dumps([header._asdict(), vocabulary]).encode()
    short = pa.compress(records, _CODEC, asbytes=True)
    sizes = _SIZES.pack(len(short), len(records), len(text), packed.LAYOUT)
    return b"".join((short, text, sizes))

"""A small part's rows as fixed-width records, to read thousands of small parts at once.

Opening 20,000 Parquet files of 18 columns costs half a minute of column readers for a few
megabytes of rows. A packed copy costs one read and one checksum per file, and many of
them together become arrays in one step. It is a cache: the same rows are in the Parquet
columns beside it, and a reader that does not know the layout reads those.
"""

import zlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Int, Shaped

from joma._core.typing import Array
from joma.records.arrow import SCHEMA
from joma.records.schema import COLUMNS
from joma.records.tables import TEXT, trimmed

_ABSENT = "absent"

_TYPES = {"text": "<u2", "float64": "<f8", "int64": "<i8", "int32": "<i4"}

ROW = np.dtype(
    [(c.name, _TYPES[c.dtype]) for c in COLUMNS]
    + [(_ABSENT, "<u4")]  # bit i is set where column i is absent
)
"""One record. A text column holds the place of its word in the part's list of words."""

LAYOUT = zlib.crc32(repr(ROW.descr).encode())
"""Changes with the columns, so that a copy is never read with another layout."""


class Packed(NamedTuple):
    """The rows of one small part."""

    words: list[str]
    records: bytes | pa.Buffer


def pack(table: pa.Table) -> Packed:
    """A solid table as records."""
    rows = np.zeros(table.num_rows, ROW)
    words: list[str] = []
    for bit, field in enumerate(SCHEMA):
        column = table[field.name].combine_chunks()
        if column.null_count:
            absent = column.is_null().to_numpy(zero_copy_only=False)
            rows[_ABSENT] |= absent.astype("<u4") << np.uint32(bit)
        if column.null_count < len(column):
            numbers = column.indices if field.name in TEXT else column
            numbers = numbers.fill_null(0) if column.null_count else numbers
            rows[field.name] = numbers.to_numpy(zero_copy_only=False)
        if field.name in TEXT:
            rows[field.name] += len(words)
            words += column.dictionary.to_pylist()
    return Packed(words, rows.tobytes())


def unpack(
    parts: Sequence[Packed],
    metrics: Collection[str] | None = None,
    columns: Collection[str] = tuple(SCHEMA.names),
) -> pa.Table:
    """The rows of many small parts as one table, in the order of the parts.

    Other `metrics` and `columns` are left out first: that is cheaper here than in a table.
    """
    rows = np.frombuffer(b"".join(p.records for p in parts), ROW)
    vocabulary: dict[str, int] = {}
    places: list[int] = []
    starts: dict[tuple[str, ...], int] = {}  # most parts of a run have the same words
    for part in parts:
        if (own := tuple(part.words)) not in starts:
            starts[own] = len(places)
            places += [vocabulary.setdefault(word, len(vocabulary)) for word in own]
    places.append(0)  # an absent word may point past the last
    place = np.array(places, np.int32)
    sizes = [len(p.records) // ROW.itemsize for p in parts]
    first = np.repeat([starts[tuple(p.words)] for p in parts], sizes)
    if metrics is not None:
        wanted = np.array([word in metrics for word in vocabulary], bool)
        kept = wanted[place[rows["metric"] + first]]
        rows, first = rows[kept], first[kept]
    words = pa.array(list(vocabulary), pa.string())
    fields = [f for f in SCHEMA if f.name in columns]
    arrays = [_column(f, rows, place, first, words) for f in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _column(
    field: pa.Field,
    rows: Shaped[Array, " rows"],
    place: Int[Array, " words"],
    first: Int[Array, " rows"],
    words: pa.Array,
) -> pa.Array:
    """Code `i` of a row means word `place[first + i]`."""
    absent = None
    if field.nullable:
        bit = np.uint32(SCHEMA.get_field_index(field.name))
        absent = (rows[_ABSENT] >> bit & 1).astype(bool)
    if field.name not in TEXT:
        return pa.array(rows[field.name], field.type, mask=absent)
    index = pa.array(place[rows[field.name] + first], pa.int32(), mask=absent)
    return trimmed(pa.DictionaryArray.from_arrays(index, words))

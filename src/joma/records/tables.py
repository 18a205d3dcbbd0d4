"""Record tables in the shape of a part: one run, one chunk, few words, one order."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from jaxtyping import Real

from joma._core.typing import Array
from joma.records.arrow import SCHEMA

TEXT = tuple(f.name for f in SCHEMA if pa.types.is_dictionary(f.type))
"""Columns of words, dictionary-encoded."""

# Every curve is contiguous and in step order; metric and layer come first because
# they are what a query picks, and row groups are picked by range.
ORDER = (
    "metric",
    "layer",
    "head",
    "site",
    "expert",
    "kind",
    "context",
    "stage",
    "metric_version",
    "sequence_length",
    "step",
)
"""Rows of a part, and of a query's answer within one run, are sorted by these; absent comes last.

Rows that agree in all of them keep the order in which they were appended.
"""


def solid(table: pa.Table) -> pa.Table:
    """The same rows in one chunk, each text column with the words it uses, sorted."""
    table = table.unify_dictionaries()
    columns = [
        trimmed(_one(c)) if name in TEXT else _one(c)
        for name, c in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def trimmed(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same words in a dictionary that holds no others, in sorted order."""
    if _constant(column):
        return column
    index = column.indices.fill_null(-1) if column.null_count else column.indices
    index = index.to_numpy(zero_copy_only=False)
    words = column.dictionary.to_pylist()
    used = np.flatnonzero(np.bincount(index + 1, minlength=len(words) + 1)[1:])
    kept = sorted({words[i] for i in used} - {None})
    place = {word: i for i, word in enumerate(kept)}
    new = np.array([place.get(w, -1) for w in words] + [-1], np.int32)[index]  # -1: absent
    return pa.DictionaryArray.from_arrays(
        pa.array(new, pa.int32(), mask=new < 0), pa.array(kept, pa.string())
    )


def ordered(table: pa.Table) -> pa.Table:
    """The rows of a solid table sorted by `ORDER`, as far as it has these columns."""
    columns = [_one(table[name]) for name in reversed(ORDER) if name in table.column_names]
    keys = [_rank(column) for column in columns if not _constant(column)]
    if not keys:
        return table
    order = np.lexsort(keys)
    if (order[1:] > order[:-1]).all():
        return table
    return table.take(pa.array(order))


def by_run(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Each run of a solid table with its rows, in their old order."""
    runs = _one(table["run"])
    names = runs.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], table
        return
    index = runs.indices.to_numpy()
    order = np.argsort(index, kind="stable")
    borders = np.searchsorted(index[order], np.arange(len(names) + 1))
    table = table.take(pa.array(order))
    for name, start, stop in zip(names, borders, borders[1:], strict=False):
        yield name, solid(table.slice(start, stop - start))


def words(table: pa.Table, column: str) -> list[str]:
    """The words of a text column of a solid table, sorted."""
    found: list[str] = _one(table[column]).dictionary.to_pylist()
    return found


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _constant(column: pa.Array) -> bool:
    """Whether a column obviously has one value throughout. Most do, in most tables."""
    if column.null_count == len(column):
        return not pa.types.is_dictionary(column.type) or len(column.dictionary) == 0
    if column.null_count or not pa.types.is_dictionary(column.type):
        return False
    return len(column.dictionary) == 1


def _rank(column: pa.Array) -> Real[Array, " rows"]:
    """Numbers that sort as the column does, absent ones last."""
    if pa.types.is_dictionary(column.type):
        column = column.indices
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(np.iinfo(np.int64).max)
    rank: Array = column.to_numpy(zero_copy_only=False)
    return rank

"""The record table in Arrow: its schema, and the way from rows and columns into it and back."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joma._core.errors import JomaError
from joma._core.typing import Array
from joma.records.schema import COLUMNS, OK, Bound, Context, Kind, Reading, Record

_TYPES = {
    "text": pa.dictionary(pa.int32(), pa.string()),
    "float64": pa.float64(),
    "int64": pa.int64(),
    "int32": pa.int32(),
}

SCHEMA: pa.Schema = pa.schema([pa.field(c.name, _TYPES[c.dtype], c.nullable) for c in COLUMNS])

_DEFAULTS = {
    "kind": Kind.MEASURED.value,
    "metric_version": 1,
    "bound": Bound.NONE.value,
    "status": OK,
}
_WORDS = {
    "kind": [k.value for k in Kind],
    "context": [c.value for c in Context],
    "bound": [b.value for b in Bound],
}


def table(records: Iterable[Record]) -> pa.Table:
    """Records as a table. For many rows at once, `from_columns` is a hundred times faster."""
    columns: dict[str, list[Any]] = {c.name: [] for c in COLUMNS}
    for record in records:
        for c in COLUMNS:
            owner = record if c.owner is Record else record.reading
            columns[c.name].append(getattr(owner, c.name))
    return pa.table(
        {f.name: pa.array(columns[f.name], pa.string() if _is_text(f) else f.type) for f in SCHEMA}
    ).cast(SCHEMA)


def rows(table: pa.Table) -> Iterator[Record]:
    """A table as records, one by one. Raises on a row that no `Reading` may hold."""
    for row in table.to_pylist():
        fields: dict[type, dict[str, Any]] = {Record: {}, Reading: {}}
        for c in COLUMNS:
            fields[c.owner][c.name] = row[c.name]
        reading = fields[Reading] | {"bound": Bound(row["bound"])}
        record = fields[Record] | {"kind": Kind(row["kind"])}
        if row["context"] is not None:
            record["context"] = Context(row["context"])
        yield Record(**record, reading=Reading(**reading))


def from_columns(
    **columns: Array | Sequence[Any] | pa.Array | pa.ChunkedArray | str | float | int | None,
) -> pa.Table:
    """A checked table from columns; a scalar stands for a constant column.

    Columns that are left out take the default of `Reading` and `Record`. An absent value
    inside an array is a masked entry or `None`; `nan` in `value` needs a `status`.

    Example:
        >>> t = from_columns(run="toy", metric="loss", step=[0, 1], value=[2.0, 1.5])
        >>> t.num_rows, t["kind"].to_pylist()
        (2, ['measured', 'measured'])
    """
    unknown = sorted(set(columns) - set(SCHEMA.names))
    if unknown:
        raise JomaError(
            f"No record column named {unknown[0]!r}. Columns: {', '.join(SCHEMA.names)}."
        )
    lengths = {n: len(c) for n, c in columns.items() if isinstance(c, Sized) and not _is_scalar(c)}
    if len(set(lengths.values())) > 1:
        raise JomaError(f"Columns must have one length; got {lengths}.")
    n = next(iter(lengths.values()), 1)
    arrays = [_array(f, columns.get(f.name, _DEFAULTS.get(f.name)), n) for f in SCHEMA]
    result = pa.Table.from_arrays(arrays, schema=SCHEMA)
    check(result)
    return result


def check(table: pa.Table) -> None:
    """Raise unless every row keeps the rules of the schema; the message names the rule."""
    if table.schema.names != SCHEMA.names:
        raise JomaError(
            f"A record table has the columns {SCHEMA.names}; got {table.schema.names}. "
            "joma.records.arrow.from_columns builds one."
        )
    for field in SCHEMA:
        if not field.nullable and table[field.name].null_count:
            raise JomaError(f"Column {field.name!r} has absent values; it needs one in every row.")
    for name, words in _WORDS.items():
        seen = set(pc.unique(_plain(table[name])).to_pylist()) - {None}
        if not seen <= set(words):
            raise JomaError(f"Column {name!r} holds {sorted(seen - set(words))}; expected {words}.")
    value, ok = table["value"], pc.equal(_plain(table["status"]), OK)
    if pc.any(pc.equal(pc.is_nan(value), ok)).as_py():
        raise JomaError(
            "A nan value needs the reason as its status, and any other value the status 'ok'."
        )
    _check_bounds(table, ok)


def _check_bounds(table: pa.Table, ok: pa.ChunkedArray) -> None:
    free = pc.equal(_plain(table["bound"]), Bound.NONE.value)
    lower, value, upper = table["lower"], table["value"], table["upper"]
    absent = pc.and_(pc.is_null(lower), pc.is_null(upper))
    if pc.any(pc.and_(free, pc.invert(absent))).as_py():
        raise JomaError("Rows with bound 'none' have no lower and no upper.")
    inside = pc.and_(pc.less_equal(lower, value), pc.less_equal(value, upper))
    inside = pc.fill_null(inside, False)
    if pc.any(pc.and_(pc.invert(free), pc.and_(ok, pc.invert(inside)))).as_py():
        raise JomaError("Rows with a 'certified' or 'ci95' bound need lower <= value <= upper.")


def _is_text(field: pa.Field) -> bool:
    return bool(pa.types.is_dictionary(field.type))


def _is_scalar(column: object) -> bool:
    return column is None or isinstance(column, str | int | float | np.generic)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionary encoding: compute kernels want plain strings."""
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _array(field: pa.Field, column: Any, n: int) -> pa.Array | pa.ChunkedArray:
    if not _is_scalar(column):
        if isinstance(column, pa.Array | pa.ChunkedArray):
            return column.cast(field.type)
        if isinstance(column, np.ma.MaskedArray):
            column = pa.array(column.data, mask=np.ma.getmaskarray(column))
            return column.cast(field.type)
        return pa.array(column).cast(field.type)
    if not _is_text(field):
        return (
            pa.nulls(n, field.type)
            if column is None
            else pa.repeat(pa.scalar(column, field.type), n)
        )
    index = pa.nulls(n, pa.int32()) if column is None else pa.repeat(pa.scalar(0, pa.int32()), n)
    words = pa.array([] if column is None else [str(column)], pa.string())
    return pa.DictionaryArray.from_arrays(index, words)

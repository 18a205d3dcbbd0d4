"""Records as curves, one per run, metric and layer; and the shape of a curve: dip and bounce.

A shape is a description. Dips and bounces occur in good runs and in failed ones alike, so nothing
here says which is which; that is `joma.analysis.diagnosis`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float

from joma._core.errors import JomaError
from joma._core.typing import Array
from joma.records.arrow import SCHEMA

NON_FINITE: Final = "non-finite attention scores"
"""The status of a largest logit that overflowed: it is larger than any number."""
LARGEST: Final = frozenset({"max_attention_logit"})
"""Metrics of which a layer has the largest of its heads. Of all others it has their mean."""
_KEYS: Final = ("run", "stage", "metric", "layer", "site", "kind", "context", "sequence_length")


@dataclass(frozen=True, eq=False)
class Curve:
    """One number over training. Heads and experts of a layer are one curve."""

    run: str
    stage: str | None
    metric: str
    layer: int | None
    site: str | None
    kind: str
    context: str | None
    sequence_length: int | None
    steps: Float[Array, " times"]
    values: Float[Array, " times"]


class Shape(NamedTuple):
    """Start, dip and end of a curve."""

    start: float
    dip: float
    """The lowest value."""
    dip_step: float
    end: float
    depth: float
    """From the start down to the dip."""
    bounce: float
    """Share of the depth that was regained by the end; `nan` where there is no dip."""


def curves(table: pa.Table, metrics: Iterable[str] | None = None) -> tuple[Curve, ...]:
    """The curves of a record table, by run, metric and layer, each in the order of its steps.

    Heads are averaged, those without a value left out; of `max_attention_logit` the largest is
    taken, and a non-finite score is infinite. A step at which no head has a value is `nan`.
    Sequence lengths give curves of their own: entropies of two lengths are not comparable.
    """
    missing = set(SCHEMA.names) - set(table.column_names)
    if missing:
        raise JomaError(f"A record table has the column {min(missing)!r}; this one does not.")
    if metrics is not None:
        wanted = pa.array(sorted(set(metrics)), pa.string())
        table = table.filter(pc.is_in(table["metric"].cast(pa.string()), wanted))
    if not table.num_rows:
        return ()
    rows = _over_heads(table)
    return tuple(_curve(part) for part in _cut(rows))


def shape(steps: Float[Array, " times"], values: Float[Array, " times"]) -> Shape:
    """Start, dip and end of a curve; steps without a value are left out.

    Example:
        >>> shape(np.array([0.0, 1.0, 2.0]), np.array([2.5, 1.5, 2.0])).bounce
        0.5
    """
    kept = np.isfinite(values)
    steps, values = steps[kept], values[kept]
    if not len(values):
        return Shape(*[math.nan] * len(Shape._fields))
    lowest = int(np.argmin(values))
    start, dip, end = (float(values[i]) for i in (0, lowest, -1))
    depth = start - dip
    bounce = (end - dip) / depth if depth > 0 else math.nan
    return Shape(start, dip, float(steps[lowest]), end, depth, bounce)


def _over_heads(table: pa.Table) -> pa.Table:
    """One row per key and step, sorted."""
    columns = {
        name: table[name].cast(pa.string())
        if pa.types.is_dictionary(table[name].type)
        else table[name]
        for name in (*_KEYS, "step", "value", "status")
    }
    value = columns["value"]
    beyond = pc.and_(
        pc.equal(columns.pop("status"), NON_FINITE),
        pc.is_in(columns["metric"], pa.array(sorted(LARGEST), pa.string())),
    )
    value = pc.if_else(beyond, math.inf, value)
    columns["value"] = pc.if_else(pc.is_nan(value), pa.scalar(None, pa.float64()), value)
    keys = [*_KEYS, "step"]
    grouped = pa.table(columns).group_by(keys).aggregate([("value", "mean"), ("value", "max")])
    return grouped.sort_by([(name, "ascending") for name in keys])


def _cut(rows: pa.Table) -> list[pa.Table]:
    """The rows of each curve, given that they are sorted."""
    changed: Bool[Array, " rows"] = np.zeros(rows.num_rows, bool)
    changed[0] = True
    for name in _KEYS:
        column = rows[name].combine_chunks()
        codes = column.dictionary_encode(null_encoding="encode").indices.to_numpy(
            zero_copy_only=False
        )
        changed[1:] |= codes[1:] != codes[:-1]
    starts = [*np.flatnonzero(changed).tolist(), rows.num_rows]
    return [rows.slice(a, b - a) for a, b in pairwise(starts)]


def _curve(part: pa.Table) -> Curve:
    key = {name: part[name][0].as_py() for name in _KEYS}
    column = "value_max" if key["metric"] in LARGEST else "value_mean"
    values = part[column].fill_null(math.nan).to_numpy()
    return Curve(**key, steps=part["step"].to_numpy(), values=values)

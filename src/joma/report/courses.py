"""Records as a page shows them: one course per run and stage, curves per layer with bounds."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from joma._core.typing import Array
from joma.analysis.curves import Curve, curves
from joma.records.schema import Bound, Context, Kind

MAP: Final = "mean_map"
"""Drawn as snapshots: each of its sites is a pair of positions."""
HIDDEN: Final = ("fingerprint_", "probe_batch", "unreadable")
"""Beginnings of metrics that are book-keeping, no curves; the table has them."""
_CONTEXTS: Final = (Context.PROBE.value, Context.EVAL.value, Context.TRAIN.value)


@dataclass(frozen=True, eq=False)
class Bounded:
    """A curve with the ends of its bounds; without a bound they are the curve itself."""

    curve: Curve
    low: Float[Array, " times"]
    high: Float[Array, " times"]
    bound: str = Bound.NONE.value


@dataclass(frozen=True, eq=False)
class Course:
    """One run, or one stage of it with its own count of steps."""

    run: str
    stage: str | None
    curves: tuple[Bounded, ...]

    @property
    def name(self) -> str:
        return self.run if self.stage is None else f"{self.run} · {self.stage}"

    def of(self, metric: str, *kinds: Kind) -> list[Bounded]:
        """Curves of a metric, by layer. Of several contexts the first of probe, eval and train.

        A prediction has no context and is kept whatever was measured.
        """
        kept = [b for b in self.curves if b.curve.metric == metric and b.curve.kind in kinds]
        seen = [_rank(b.curve) for b in kept if b.curve.kind != Kind.PREDICTED]
        best = min(seen, default=0)
        return [b for b in kept if b.curve.kind == Kind.PREDICTED or _rank(b.curve) == best]

    def metrics(self) -> list[str]:
        """Every metric that was measured here."""
        return list(dict.fromkeys(b.curve.metric for b in self.curves))


def courses(table: pa.Table) -> tuple[Course, ...]:
    """Every run and stage of a record table, by name."""
    found: dict[tuple[str, str | None], list[Bounded]] = defaultdict(list)
    for one in bounded(_plotted(table)):
        found[one.curve.run, one.curve.stage].append(one)
    return tuple(Course(run, stage, tuple(of)) for (run, stage), of in found.items())


def bounded(table: pa.Table) -> tuple[Bounded, ...]:
    """Curves with their bounds. Over heads, bounds are averaged as the values are.

    A step has a bound if every head has one there: the mean of some says nothing of all.
    """
    found = curves(table)
    sure = table.filter(pc.not_equal(table["bound"].cast(pa.string()), Bound.NONE.value))
    if not sure.num_rows:
        return tuple(Bounded(c, c.values, c.values) for c in found)
    kinds = dict(
        zip(sure["metric"].to_pylist(), sure["bound"].to_pylist(), strict=True)
    )  # a metric has one kind of bound
    value, low, high = (
        {_key(c): c for c in curves(_as_value(sure, column))}
        for column in ("value", "lower", "upper")
    )
    return tuple(
        _with_bounds(c, value[_key(c)], low[_key(c)], high[_key(c)], kinds[c.metric])
        if _key(c) in value
        else Bounded(c, c.values, c.values)
        for c in found
    )


def label(curve: Curve, among: Sequence[Curve]) -> str:
    """What tells a curve from the others of its metric: its layer, and what else differs."""
    words = [] if curve.layer is None else [f"layer {curve.layer}"]
    if len({c.site for c in among}) > 1 and curve.site is not None:
        words.append(curve.site)
    if len({c.sequence_length for c in among}) > 1 and curve.sequence_length is not None:
        words.append(f"length {curve.sequence_length}")
    if curve.kind == Kind.CONTROL:
        words.append("(control)")
    if curve.kind == Kind.PREDICTED:
        words.append("(theory, a model)")
    return " ".join(words) or curve.metric.replace("_", " ")


def _plotted(table: pa.Table) -> pa.Table:
    metric = table["metric"].cast(pa.string())
    hidden = pc.equal(metric, MAP)
    for start in HIDDEN:
        hidden = pc.or_(hidden, pc.starts_with(metric, start))
    return table.filter(pc.invert(hidden))


def _rank(curve: Curve) -> int:
    return _CONTEXTS.index(curve.context) if curve.context in _CONTEXTS else len(_CONTEXTS)


def _key(curve: Curve) -> tuple[object, ...]:
    c = curve
    return c.run, c.stage, c.metric, c.layer, c.site, c.kind, c.context, c.sequence_length


def _as_value(table: pa.Table, column: str) -> pa.Table:
    place = table.schema.get_field_index("value")
    return table.set_column(place, table.schema.field("value"), table[column])


def _with_bounds(curve: Curve, same: Curve, low: Curve, high: Curve, bound: str) -> Bounded:
    """`same` is the curve of the rows that have a bound; where it differs, others have none."""
    here, there = np.isin(curve.steps, same.steps), np.isin(same.steps, curve.steps)
    ends = []
    for end in (low, high):
        values = curve.values.copy()
        values[here] = np.where(
            np.isclose(same.values[there], curve.values[here], rtol=1e-9, atol=0),
            end.values[there],
            curve.values[here],
        )
        ends.append(values)
    return Bounded(curve, ends[0], ends[1], bound)

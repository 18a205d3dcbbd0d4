"""The observations of a run, read off a table of records in the way the diagnosis wants them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from joma._core.typing import Array
from joma.analysis.curves import Curve, curves
from joma.analysis.facts import Facts
from joma.analysis.standing import Seen
from joma.records.schema import Context, Kind

ENTROPIES: Final = ("attention_entropy_sink_free", "attention_entropy")
"""The first of these that a run has is judged: attention sinks are left out if possible."""
LOGIT: Final = "max_attention_logit"
LOSS: Final = "loss"
_CONTEXTS: Final = (Context.PROBE.value, Context.EVAL.value, Context.TRAIN.value, None)
"""A fixed batch is best; the first of these that a run has is taken."""


@dataclass(frozen=True, eq=False)
class Series:
    """A run, step by step. Layers with several attentions have the number of their layer twice."""

    run: str
    layers: tuple[int, ...]
    seen: tuple[Seen, ...]
    facts: Facts
    """What the table itself tells: the sequence length, and whether it changed."""


def series(table: pa.Table) -> tuple[Series, ...]:
    """Every run of a table that has attention entropies, by name."""
    by_run: dict[str, list[Curve]] = defaultdict(list)
    for curve in curves(table, (*ENTROPIES, LOGIT, LOSS)):
        if curve.kind == Kind.MEASURED:
            by_run[curve.run].append(curve)
    found = (_series(run, of_run) for run, of_run in sorted(by_run.items()))
    return tuple(one for one in found if one is not None)


def _series(run: str, found: Sequence[Curve]) -> Series | None:
    entropies = _preferred(found, ENTROPIES)
    if not entropies:
        return None
    lengths = sorted({c.sequence_length for c in entropies if c.sequence_length is not None})
    facts = Facts(sequence_length=lengths[0] if len(lengths) == 1 else None)
    if len({c.sequence_length for c in entropies}) > 1:
        facts = replace(facts, changed=f"the sequence length ({', '.join(map(str, lengths))})")
    places = sorted({_place(c) for c in entropies})
    steps = np.unique(np.concatenate([c.steps for c in entropies]))
    entropy = _table(steps, places, entropies)
    logit = _table(steps, places, _preferred(found, (LOGIT,)))
    loss = _latest(steps, _preferred(found, (LOSS,)))
    seen = tuple(
        Seen(step=float(s), entropy=entropy[i], logit=logit[i], loss=float(loss[i]))
        for i, s in enumerate(steps)
    )
    return Series(run, tuple(layer for layer, _ in places), seen, facts)


def _preferred(found: Iterable[Curve], metrics: Sequence[str]) -> list[Curve]:
    """The curves of the first metric and context that there are."""
    kept = [c for c in found if c.metric in metrics]
    if not kept:
        return []

    def rank(c: Curve) -> tuple[int, int]:
        return metrics.index(c.metric), _CONTEXTS.index(c.context) if c.context in _CONTEXTS else 9

    best = min(map(rank, kept))
    return [c for c in kept if rank(c) == best]


def _place(curve: Curve) -> tuple[int, str]:
    return -1 if curve.layer is None else curve.layer, curve.site or ""


def _table(
    steps: Float[Array, " times"], places: Sequence[tuple[int, str]], found: Iterable[Curve]
) -> Float[Array, "times layers"]:
    """One column per place; `nan` where nothing was measured."""
    values = np.full((len(steps), len(places)), math.nan)
    for curve in found:
        if _place(curve) in places:
            values[np.isin(steps, curve.steps), places.index(_place(curve))] = curve.values[
                np.isin(curve.steps, steps)
            ]
    return values


def _latest(steps: Float[Array, " times"], found: Sequence[Curve]) -> Float[Array, " times"]:
    """The last loss at or before each step; `nan` before the first.

    A training loss of step 1 was taken before the first update: it is that of step 0 too.
    """
    if not found:
        return np.full(len(steps), math.nan)
    when = np.concatenate([c.steps for c in found])
    order = np.argsort(when, kind="stable")
    values = np.concatenate([c.values for c in found])[order]
    before = values[0] if when[order][0] <= 1 and _is_training(found) else math.nan
    at = np.searchsorted(when[order], steps, side="right") - 1
    return np.where(at < 0, before, values[at])


def _is_training(found: Sequence[Curve]) -> bool:
    return all(curve.context == Context.TRAIN for curve in found)

"""A rule for attention in training: what it may say, and when it must not.

Attention that has narrowed, or logits that have grown, are no fault by themselves: attention may
be sparse and the model learn on. They become an alarm when the loss gains nothing from then on.
Every layer is compared with its own step 0; no single head is judged.

`diagnose` reads a table of records. A monitor keeps a `Standing`, advances it with every
observation (`joma.analysis.standing.advanced`) and asks `diagnosed`; both say the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from joma._core.typing import Array
from joma.analysis.calibration import CALIBRATION, Calibration
from joma.analysis.facts import Facts as Facts, no_all_clear, unfit
from joma.analysis.series import series
from joma.analysis.standing import Seen, Standing, Stretch, advanced
from joma.records.store import Store

TRY: Final = "Try a lower peak learning rate, a longer warm-up, or QK-norm."


class Verdict(StrEnum):
    """Everything a diagnosis can say, the most urgent first."""

    COLLAPSING = "attention collapsing"
    EXPLODING = "logits exploding"
    CANNOT_SAY = "cannot say"
    SPARSE = "sparse but functional"
    NO_WARNING = "no warning"

    @property
    def alarm(self) -> bool:
        """Whether someone should look at the run."""
        return self in (Verdict.COLLAPSING, Verdict.EXPLODING)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One verdict, of a layer or of a whole run, and the sentences that explain it."""

    run: str
    verdict: Verdict
    message: str
    step: float | int
    """The last step that was looked at."""
    layer: int | None = None
    since: float | None = None
    """The step from which on the layer is as the message says."""


def diagnose(
    table: pa.Table,
    facts: Mapping[str, Facts] | None = None,
    limits: Calibration = CALIBRATION,
) -> tuple[Diagnosis, ...]:
    """Verdicts of every run in a record table that has attention entropies, run by run.

    Args:
        table: As a store gives it. Predictions and controls are left alone.
        facts: By run, as `facts_of` finds them; the table itself tells the sequence length.
        limits: The thresholds, and what they rest on.
    """
    found: list[Diagnosis] = []
    for one in series(table):
        known = (facts or {}).get(one.run, Facts())
        known = replace(
            known,
            sequence_length=known.sequence_length or one.facts.sequence_length,
            changed=known.changed or one.facts.changed,
        )
        found += diagnosed(one.run, standing_after(one.seen, limits), known, one.layers, limits)
    return tuple(found)


def facts_of(store: Store) -> dict[str, Facts]:
    """The facts of each run, from the provenance that its parts name; the last one counts."""
    noted = store.provenance()
    return {
        part.header.run: Facts.of(noted[key])
        for part in store.parts()
        for key in part.header.provenance
        if key in noted
    }


def standing_after(seen: Iterable[Seen], limits: Calibration = CALIBRATION) -> Standing:
    """Where a run stands after all of its observations, of which there must be one."""
    now: Standing | None = None
    for one in seen:
        now = advanced(now, one, limits)
    assert now is not None
    return now


def verdicts(standing: Standing, limits: Calibration = CALIBRATION) -> list[Verdict]:
    """The rule: one word per layer, before anything is asked about the run as a whole."""
    narrow, large = standing.narrow, standing.large
    rule = (
        (narrow.stalled, Verdict.COLLAPSING),
        (large.stalled | np.isposinf(standing.last.logit), Verdict.EXPLODING),
        (narrow.lasts & ~narrow.learns(limits), Verdict.CANNOT_SAY),
        (large.lasts & ~large.learns(limits), Verdict.CANNOT_SAY),
        (narrow.lasts, Verdict.SPARSE),
    )
    layers = range(len(standing.last.entropy))
    return [next((word for holds, word in rule if holds[i]), Verdict.NO_WARNING) for i in layers]


def diagnosed(
    run: str,
    standing: Standing,
    facts: Facts | None = None,
    layers: Sequence[int] | None = None,
    limits: Calibration = CALIBRATION,
) -> tuple[Diagnosis, ...]:
    """Verdicts of a run in words, the most urgent first: of layers, or one of the whole run.

    A run the rule is not made for gets *cannot say* and nothing else. During warm-up, and outside
    what the thresholds were calibrated on, alarms are given but no all-clear.
    """
    facts = facts or Facts()
    numbers = range(len(standing.last.entropy)) if layers is None else layers
    reason = unfit(standing, facts, limits)
    if reason:
        return (_whole(run, standing, Verdict.CANNOT_SAY, reason),)
    words = verdicts(standing, limits)
    reason = no_all_clear(standing, facts, limits)
    found = [
        _of_layer(run, standing, i, numbers[i], word, limits)
        for i, word in enumerate(words)
        if word.alarm or (word is not Verdict.NO_WARNING and not reason)
    ]
    if not found:
        verdict = Verdict.CANNOT_SAY if reason else Verdict.NO_WARNING
        found = [_whole(run, standing, verdict, reason or _calm(standing, limits))]
    order = list(Verdict)
    return tuple(sorted(found, key=lambda one: order.index(one.verdict)))


def _whole(run: str, standing: Standing, verdict: Verdict, message: str) -> Diagnosis:
    return Diagnosis(run=run, verdict=verdict, message=message, step=standing.last.step)


def _calm(standing: Standing, limits: Calibration) -> str:
    share = standing.last.entropy / standing.first.entropy
    return (
        f"The narrowest layer has {_extreme(np.fmin, share, '.0%')} of its entropy at step 0 "
        f"(limit {limits.share:.0%}), the largest logit is "
        f"{_extreme(np.fmax, standing.last.logit, '.1f')} (limit {limits.logit:g}). "
        f"Rests on {limits.says}."
    )


def _extreme(which: np.ufunc, values: Float[Array, " layers"], form: str) -> str:
    value = float(which.reduce(values))
    return "unknown" if math.isnan(value) else format(value, form)


def _of_layer(
    run: str, standing: Standing, i: int, layer: int, word: Verdict, limits: Calibration
) -> Diagnosis:
    first, last, narrow = standing.first, standing.last, standing.narrow
    waits = word is Verdict.CANNOT_SAY and not (narrow.lasts & ~narrow.learns(limits))[i]
    stretch = standing.large if word is Verdict.EXPLODING or waits else narrow
    measured = (
        f"Layer {layer}: entropy {last.entropy[i]:.2f} nats, "
        f"{last.entropy[i] / first.entropy[i]:.0%} of step 0 (limit {limits.share:.0%}); largest "
        f"logit {last.logit[i]:.1f} (limit {limits.logit:g})"
    )
    since = float(stretch.since[i])
    message = f"{measured}; past a limit since step {since:g}. {_loss(stretch, i, word, limits)}"
    return Diagnosis(
        run=run, verdict=word, message=message, step=last.step, layer=layer, since=since
    )


def _loss(stretch: Stretch, i: int, word: Verdict, limits: Calibration) -> str:
    gain, due = float(stretch.gain[i]), limits.grace * float(stretch.since[i])
    gained = "is not a number" if math.isnan(gain) else f"has gained {gain:.1%} since then"
    bar = f"of runs that learn on gains {limits.gain:.0%} by step {due:g}"
    if word.alarm and gain >= limits.gain:  # it came late: the alarm stays until the layer is back
        late = (
            f"had not gained {limits.gain:.0%} by step {due:g}, as that of runs that learn on has"
        )
        return f"The loss {late}; by now it {gained}. Rests on {limits.says}. {TRY}"
    if word.alarm:
        return f"The loss {gained}; that {bar}. Rests on {limits.says}. {TRY}"
    if word is Verdict.CANNOT_SAY:
        return f"The loss {gained}; that {bar}."
    return f"The loss {gained}, and the model learns on; that {bar}. Rests on {limits.says}."

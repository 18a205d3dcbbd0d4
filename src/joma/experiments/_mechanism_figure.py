"""What is drawn of `mechanism`: the ladder, the way there, and words one by one."""

import numpy as np

from joma.experiments._figure import curve, dot, line, range_over
from joma.experiments._mechanism_claims import (
    ENERGY_CHANGE,
    FREQUENCY,
    LOGIT_CHANGE,
    MEAN,
    PARTIAL,
    SPEARMAN,
    STRONG,
    SUM,
    VALUE_NORM,
    last,
    metric,
)
from joma.experiments._mechanism_model import FROZEN, LADDER, RUNGS, twin
from joma.experiments.base import Evidence
from joma.report.panels import Dot, Panel, Reference

MLP, VALUE, OFTEN, TWIN, REST = (
    "MLP weights",
    "value norm alone",
    "frequency",
    "MLP weights, frozen MLP",
    "MLP weights, given value norm and frequency",
)


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Agreement per rung with its controls; over training; word by word on first and last rung."""
    return (
        _ladder(evidence, MEAN, "Mean logit of a word over the queries that see it"),
        _ladder(evidence, SUM, "Sum of the logits of a word over all words as queries (E25)"),
        _over_time(evidence, "full"),
        _over_time(evidence, RUNGS[-1]),
        *(_scatter(evidence, rung) for rung in (RUNGS[0], RUNGS[-1])),
    )


def _ladder(evidence: Evidence, reading: str, what: str) -> Panel:
    dots: list[Dot] = []
    for series, other in ((MLP, SPEARMAN), (VALUE, VALUE_NORM), (OFTEN, FREQUENCY)):
        for rung in RUNGS:
            values = last(evidence, reading, other, rung)
            if np.all(np.isfinite(values)):
                dots.append(dot(LADDER[rung], values, series=series, hollow=series != MLP))
    for rung in FROZEN:
        values = last(evidence, reading, SPEARMAN, twin(rung))
        dots.append(dot(LADDER[rung], values, series=TWIN, hollow=True))
    return Panel(
        title=f"{what}: its change against that of the word's MLP weights, hypotheses restored one"
        f" after the other; {range_over(evidence)}",
        value_label="rank correlation over words",
        dots=tuple(dots),
        references=(Reference(label=f"counts as agreement: {STRONG}", low=STRONG),),
        value_range=(-1.05, 1.05),
        wide=True,
    )


def _over_time(evidence: Evidence, rung: str) -> Panel:
    shown = [(SPEARMAN, rung, MLP), (FREQUENCY, rung, OFTEN)]
    if rung in FROZEN:
        shown += [(VALUE_NORM, rung, VALUE), (SPEARMAN, twin(rung), TWIN), (PARTIAL, rung, REST)]
    return Panel(
        title=f"{_name(rung)}, mean logits, changes since the start; {range_over(evidence)}",
        value_label="rank correlation over words",
        time_label="minibatch",
        lines=tuple(
            line(evidence, metric(MEAN, what), arm, label=label, dashed=label not in (MLP, REST))
            for what, arm, label in shown
        ),
        log_time=True,
    )


def _name(rung: str) -> str:
    return "Language model" if rung == RUNGS[0] else "All hypotheses restored"


def _scatter(evidence: Evidence, rung: str) -> Panel:
    """On seed 0; the line is what Theorem 1 says."""
    energy, logit = (
        evidence.curve(metric, arm=rung, seed=0).values for metric in (ENERGY_CHANGE, LOGIT_CHANGE)
    )
    ends = np.array([energy.min(), energy.max()])
    return Panel(
        title=f"{_name(rung)}, word by word; seed 0",
        value_label="change of the mean logit",
        time_label="change of half the sum of squared MLP weights",
        lines=(
            curve(f"{len(energy)} words", energy, logit, points=True),
            curve("Theorem 1, exp attention", ends, ends, dashed=True),
        ),
    )

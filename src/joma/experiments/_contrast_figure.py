"""What is drawn of `contrast`: entropy of every arm, how far it bounces, hypotheses it meets."""

import numpy as np

from joma.experiments._contrast_claims import (
    ARMS,
    BOUNCE,
    HIGH,
    HYPOTHESES,
    LOW,
    dips,
    hypothesis,
    named,
)
from joma.experiments._figure import dot, line, range_over
from joma.experiments._language import ENTROPY
from joma.experiments.base import Evidence
from joma.report.panels import HeatMap, Panel, Reference

RATES = {LOW: "1e-4", HIGH: "1e-3"}
LABELS = {
    "relu": "ReLU",
    "no_mlp": "no MLP",
    "frozen_mlp": "frozen MLP",
    "no_norm": "no LayerNorm",
    "rms_norm": "RMSNorm",
    "sgd": "SGD, rate × 1000",
}
GROUPS = {
    "what the MLP is": ("relu", "identity", "no_mlp", "frozen_mlp"),
    "what is around it": ("relu", *ARMS[4:]),
}


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Entropy at both learning rates, by group of arms; then bounces and hypotheses."""
    curves = [_curves(evidence, group, rate) for group in GROUPS for rate in RATES]
    return (*curves, _bounces(evidence), _met(evidence))


def _curves(evidence: Evidence, group: str, rate: str) -> Panel:
    seen = evidence.part(layer=0)
    return Panel(
        title=f"{group[0].upper()}{group[1:]}, learning rate {RATES[rate]}; {range_over(evidence)}",
        value_label="attention entropy (nats)",
        time_label="minibatch",
        lines=tuple(
            line(seen, ENTROPY, named(arm, rate), label=_label(arm), dashed=arm != "relu")
            for arm in GROUPS[group]
        ),
        log_time=True,
    )


def _bounces(evidence: Evidence) -> Panel:
    return Panel(
        title=f"From the lowest entropy to the last quarter; {range_over(evidence)}",
        value_label="bounce (nats)",
        dots=tuple(
            dot(
                _label(arm),
                [d.bounce for d in dips(evidence, arm, rate)],
                series=f"learning rate {shown}",
                hollow=arm != "relu",
            )
            for rate, shown in RATES.items()
            for arm in ARMS
        ),
        references=(Reference(label=f"counts as a bounce: {BOUNCE}", low=BOUNCE),),
    )


def _met(evidence: Evidence) -> Panel:
    met = [
        [evidence.curves(hypothesis(what), arm=named(arm, LOW))[0].values[0] for arm in ARMS]
        for what in HYPOTHESES
    ]
    return Panel(
        title="Hypotheses of Theorem 1 that an arm meets",
        value_label="met",
        heat=HeatMap(
            rows=HYPOTHESES,
            columns=tuple(_label(arm) for arm in ARMS),
            values=np.array(met),
            span=(0.0, 1.0),
        ),
        wide=True,
    )


def _label(arm: str) -> str:
    return LABELS.get(arm, arm.replace("_", " "))

"""Panels of language models in training: four curves, and the attention map by distance."""

from collections import defaultdict

import numpy as np

from joma.analysis.ceiling import causal_ceiling
from joma.experiments._figure import curve, line, range_over
from joma.experiments._language import ENTROPY, LENGTH, LOGIT, MAP, RANK
from joma.experiments.base import Evidence
from joma.report.panels import Line, Panel, Reference

CURVES = {
    ENTROPY: ("Attention entropy", "attention entropy (nats)"),
    LOGIT: ("Largest attention logit", "logit"),
    RANK: ("Stable rank of the lower MLP matrix", "stable rank"),
}


def curves(evidence: Evidence, arms: dict[str, tuple[str, int]]) -> tuple[Panel, ...]:
    """Entropy, logit, stable rank and loss over training.

    Args:
        evidence: The records.
        arms: Label and number of layers of each arm to draw.
    """
    seeds = range_over(evidence)
    places = [
        (arm, layer, f"{label}, layer {layer}" if count > 1 else label)
        for arm, (label, count) in arms.items()
        for layer in range(count)
    ]

    def panel(title: str, unit: str, lines: list[Line], *references: Reference) -> Panel:
        return Panel(
            title=f"{title}; {seeds}",
            value_label=unit,
            time_label="minibatch (0 = untrained)",
            lines=tuple(lines),
            log_time=True,
            log_value=unit == "logit",
            time_range=(0.0, max(float(each.x[-1]) for each in lines)),
            references=references,
        )

    ceiling = Reference(label="uniform attention", low=causal_ceiling(LENGTH))
    made = []
    for metric, (title, unit) in CURVES.items():
        lines = [
            line(evidence.part(layer=layer), metric, arm, label=label)
            for arm, layer, label in places
        ]
        made.append(panel(title, unit, lines, *((ceiling,) if metric == ENTROPY else ())))
    losses = [line(evidence, "loss", arm, label=label) for arm, (label, _) in arms.items()]
    return (*made, panel("Validation loss", "loss (nats per token)", losses))


def map_by_distance(evidence: Evidence, arm: str, layer: int, title: str) -> Panel:
    """The mean attention map, folded: how much a query gives to the key `d` places back."""
    table = evidence.part(layer=layer, metric=MAP).table
    totals: dict[float, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows = zip(*(table[c].to_pylist() for c in ("run", "step", "site", "value")), strict=True)
    for run, step, site, value in rows:
        if f"/{arm}/" in run:
            query, key = (int(word[1:]) for word in site.split("."))
            totals[step][query - key].append(value)
    lines = []
    for step, by_distance in sorted(totals.items()):
        distances = np.array(sorted(by_distance), dtype=float)
        means = np.array([np.mean(by_distance[int(d)]) for d in distances])
        lines.append(curve(f"minibatch {step:,.0f}", distances, means))
    return Panel(
        title=f"{title}: mean attention to the key some places back",
        value_label="attention weight",
        time_label="distance to the key (tokens)",
        lines=tuple(lines),
        log_value=True,
    )

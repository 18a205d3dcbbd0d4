"""What a diagnosis must know of a run besides its curves, and when it may not speak."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from joma.analysis.calibration import Calibration
from joma.analysis.ceiling import causal_ceiling
from joma.analysis.standing import Standing


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a run; a provenance keeps them in its config under `joma_facts`.

    By default there is nothing special about a run, and what is not known is not asked.
    """

    qk_norm: bool = False
    softcap: bool = False
    sinks: bool = False
    """Learned attention sinks; the first token of a sequence is none."""
    fine_tuned: bool = False
    """Training began from a checkpoint."""
    changed: str = ""
    """What changed about the measurement on the way, as `the probe batch`."""
    warmup: int = 0
    """Steps until the learning rate is at its peak."""
    sequence_length: int | None = None
    """Of causal attention, whose ceiling follows from it."""
    vocabulary: int | None = None

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> "Facts":
        """The facts noted in a provenance, as `joma.records.provenance.collect` makes it."""
        config = provenance.get("config")
        noted = config.get("joma_facts", {}) if isinstance(config, Mapping) else {}
        return cls(**{f.name: noted[f.name] for f in fields(cls) if f.name in noted})


def unfit(standing: Standing, facts: Facts, limits: Calibration) -> str:
    """Why the rule does not apply to a run at all; empty if it does."""
    bounded = "bounds the logits, and then entropy and logits mean something else"
    first = standing.first
    reasons = (
        (facts.qk_norm, f"QK-norm {bounded}."),
        (facts.softcap, f"A soft cap {bounded}."),
        (facts.sinks, "Learned sinks take attention and return nothing; none were calibrated on."),
        (facts.fine_tuned, "Training began from a checkpoint; the rule needs an untrained step 0."),
        (bool(facts.changed), f"Before and after do not compare: {facts.changed} changed."),
        (first.step > 0, f"Records begin at step {first.step:g}; the rule compares with step 0."),
        (bool(np.isnan(first.entropy).all()), "No layer has an entropy at step 0."),
        (math.isnan(first.loss), "There is no loss at step 0 to see whether the model learns."),
    )
    found = next((reason for holds, reason in reasons if holds), "")
    return found or _trained_before(standing, facts, limits)


def no_all_clear(standing: Standing, facts: Facts, limits: Calibration) -> str:
    """Why alarms may be given but nothing else; empty if there is no reason."""
    step, layers = standing.last.step, len(standing.last.entropy)
    if step < facts.warmup:
        return f"Warm-up lasts until step {facts.warmup}: no alarm so far, and no all-clear yet."
    asked = (
        ("layers", layers, limits.layers),
        ("sequence length", facts.sequence_length, limits.lengths),
        ("step", step, (0, limits.steps)),
    )
    outside = [
        f"{name} {value:g} (calibrated on {low} to {high})"
        for name, value, (low, high) in asked
        if value is not None and not low <= value <= high
    ]
    if not outside:
        return ""
    return f"No alarm, but outside what the thresholds rest on: {', '.join(outside)}."


def _trained_before(standing: Standing, facts: Facts, limits: Calibration) -> str:
    entropy, loss = float(np.nanmean(standing.first.entropy)), standing.first.loss
    lowest = limits.untrained
    if facts.sequence_length is not None and facts.sequence_length > 1:
        ceiling = causal_ceiling(facts.sequence_length)
        if entropy < lowest * ceiling:
            return (
                f"Entropy at step 0 is {entropy:.2f} nats, {entropy / ceiling:.0%} of its ceiling "
                f"{ceiling:.2f}; an untrained model is above {lowest:.0%}. Was it trained before?"
            )
    if facts.vocabulary is not None and loss < lowest * math.log(facts.vocabulary):
        return (
            f"The loss at step 0 is {loss:.2f}, below {lowest:.0%} of ln {facts.vocabulary} = "
            f"{math.log(facts.vocabulary):.2f} of an untrained model. Was it trained before?"
        )
    return ""

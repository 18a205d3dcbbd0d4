"""The thresholds of the diagnosis, and the runs they rest on."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """When the diagnosis speaks, and for what runs it was shown to be right."""

    share: float
    """Entropy below this share of its own step 0 is narrow."""
    logit: float
    """Attention logits above this are large."""
    gain: float
    """A run learns on if its loss has gained this share since a limit was passed."""
    grace: float
    """It has until this multiple of that step to show it."""
    untrained: float
    """At step 0, entropy below this share of its ceiling is not that of an untrained model."""
    layers: tuple[int, int]
    """Fewest and most layers of the runs."""
    lengths: tuple[int, int]
    """Shortest and longest sequences of the runs."""
    steps: int
    """Their length."""
    says: str
    """What a message names them by."""


CALIBRATION = Calibration(
    share=0.1,
    logit=200.0,
    gain=0.05,
    grace=1.5,
    untrained=0.8,  # the lowest of all runs starts at 0.96
    layers=(1, 4),
    lengths=(35, 256),
    steps=1000,
    says="33 runs of small models on WikiText-2 (joma bench diagnosis)",
)
"""Chosen by `joma bench diagnosis` on the calibration half of its runs: most impaired runs alarmed
without a false alarm, then the earliest. `untrained` was set by hand."""

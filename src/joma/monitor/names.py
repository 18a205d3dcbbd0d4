"""Readings as the flat names that loggers know: `joma/attention_entropy/layer_00`."""

import math
from collections.abc import Iterable

from joma.records.schema import Reading

PREFIX = "joma"
_SHORT = {"max_attention_logit": "max_logit"}


def flat(readings: Iterable[Reading]) -> dict[str, float]:
    """One number per layer and site: the mean over heads and experts, of a maximum the largest.

    Undefined readings are left out of it; where all are undefined, so is the number. Only the
    metric that comes first is meant for a logger: what a probe reads beside it, and single
    heads, are in the records.

    Example:
        >>> flat(Reading("sink_mass", 0.5 * head, layer=3, head=head) for head in range(3))
        {'joma/sink_mass/layer_03': 0.5}
    """
    groups: dict[str, list[float]] = {}
    first: str | None = None
    for reading in readings:
        first = first or reading.metric
        if reading.metric == first:
            groups.setdefault(name(reading), []).append(reading.value)
    largest = (first or "").startswith("max_")
    return {key: _summary(values, largest) for key, values in groups.items()}


def of_metric(readings: Iterable[Reading], metric: str) -> dict[str, float]:
    """The same of one metric, wherever it comes among the readings."""
    return flat(reading for reading in readings if reading.metric == metric)


def name(reading: Reading) -> str:
    """The flat name of a reading, without its head or expert."""
    words = [PREFIX, _SHORT.get(reading.metric, reading.metric)]
    if reading.layer is not None:
        words.append(f"layer_{reading.layer:02d}")
    if reading.site is not None:
        words.append(reading.site)
    return "/".join(words)


def _summary(values: list[float], largest: bool) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    return max(known) if largest else math.fsum(known) / len(known)

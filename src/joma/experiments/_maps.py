"""The mean attention map: how much position i looks at position j, over sequences and heads.

One number per pair, so for short sequences only; that is what the paper's figures show.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch

from joma.probes.base import AbstractStreamProbe, AttentionCall, Need, Place, Sums
from joma.records.schema import Reading


class MeanMapProbe(AbstractStreamProbe):
    """Readings `mean_map` at sites `q<row>.k<column>`, for plain causal attention."""

    need: ClassVar = Need.ATTENTION

    def observe(self, seen: AttentionCall) -> Sums:
        """The attention weights of every pair, added up, and how many rows of them there were."""
        scores = seen.scale * seen.query @ seen.key.transpose(-1, -2)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return {
            "map": weights.double().sum((0, 1)),
            "sequences": torch.tensor(float(weights.shape[0] * weights.shape[1])).double(),
        }

    def readings(self, place: Place, sums: Sums) -> Iterator[Reading]:
        """One per visible pair."""
        mean = sums["map"] / sums["sequences"]
        for row in range(len(mean)):
            for column in range(row + 1):
                site = f"q{row:02d}.k{column:02d}"
                yield Reading("mean_map", float(mean[row, column]), layer=place.layer, site=site)

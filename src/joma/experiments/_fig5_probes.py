"""Attention by common ancestor, and latents in hidden units, as probes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.metrics.correlation import Correlation, held_out_match
from joma.probes.base import AbstractStreamProbe, AttentionCall, HiddenCall, Need, Place, Sums
from joma.probes.calls import dense
from joma.records.schema import OK, Reading


@dataclass(frozen=True, kw_only=True, eq=False)
class AncestorProbe(AbstractStreamProbe):
    """How much attention pairs of tokens get by their common ancestor, relative to other pairs.

    1 is no preference. Pairs are compared at equal positions of query and key, hence at equal
    distance: the attention that pairs with one ancestor get, over what they would get if each had
    the mean of all pairs at its two positions. A token's attention to itself is left out, and the
    rest of the row scaled to 1.
    """

    need: ClassVar = Need.ATTENTION
    ancestor: Int[Tensor, "batch query key"]
    """Level of the common ancestor; -1 where a pair does not count."""
    levels: tuple[int, ...]
    metric: str = "lift"

    def observe(self, seen: AttentionCall) -> Sums:
        attention = dense(seen).mean(1)
        attention = attention - attention.diagonal(dim1=1, dim2=2).diag_embed()
        others = attention.sum(2, keepdim=True)
        attention = attention / others.where(others > 0, 1.0)
        here = torch.stack([self.ancestor == level for level in self.levels], -1)
        return {
            "mass": torch.einsum("bqk,bqkl->qkl", attention, here.double()),
            "pairs": here.sum(0).double(),
        }

    def readings(self, place: Place, sums: Sums) -> Iterator[Reading]:
        mass, pairs = sums["mass"], sums["pairs"]
        count = pairs.sum(-1, keepdim=True)
        typical = mass.sum(-1, keepdim=True) / count.where(count > 0, 1.0)
        expected = (pairs * typical).sum((0, 1))
        lift = torch.where(expected > 0, mass.sum((0, 1)) / expected, torch.nan)
        for level, value in zip(self.levels, lift.tolist(), strict=True):
            status = OK if value == value else "no such pair"
            yield place.reading(f"{self.metric}_{level}", value, status=status)


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentProbe(AbstractStreamProbe):
    """Mean correlation of each level's latents with a unit chosen on other samples."""

    need: ClassVar = Need.HIDDEN
    latents: tuple[Bool[Tensor, "samples _"], ...]
    pool: Callable[[Float[Tensor, "batch query hidden"]], Float[Tensor, "samples hidden"]]
    """Hidden units to one row per sample. Units are chosen on the first half of the rows."""
    phi: Callable[[Tensor], Tensor]

    def observe(self, seen: HiddenCall) -> Sums:
        units = self.pool(self.phi(seen.preactivation))
        half = len(units) // 2
        found: dict[str, Tensor] = {}
        for level, latents in enumerate(self.latents, 1):
            for name, part in (("chosen", slice(half)), ("scored", slice(half, None))):
                moments = Correlation.of(units[part], latents[part]).sums()
                found |= {f"{name} {level} {key}": value for key, value in moments.items()}
        return found

    def readings(self, place: Place, sums: Sums) -> Iterator[Reading]:
        for level in range(1, len(self.latents) + 1):
            chosen, scored = (_part(sums, f"{name} {level} ") for name in ("chosen", "scored"))
            value = held_out_match(chosen, scored).nanmean().item()
            status = OK if value == value else "no latent and unit that both vary"
            yield place.reading(f"latent_{level}", value, status=status)


def _part(sums: Sums, start: str) -> Correlation:
    return Correlation.from_sums(
        {key.removeprefix(start): value for key, value in sums.items() if key.startswith(start)}
    )

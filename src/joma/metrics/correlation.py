r"""Normalised correlation of hidden units with latents, and its best match with a null beside it.

Table 1 matches each latent with its best unit. The best of many units is far from zero even if
none of them knows anything, so no best match is reported here without what chance gives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from joma.metrics._moments import Correlation as Correlation
from joma.metrics._null import exceedance, null_match as null_match
from joma.probes.base import AbstractStreamProbe, HiddenCall, Need, Place, Sums
from joma.records.schema import OK, Reading


def normalized_correlation(
    units: Float[Tensor, "samples hidden"], latents: Shaped[Tensor, "samples latents"]
) -> Float64[Tensor, "hidden latents"]:
    """Correlation over samples of each unit with each latent, both centred (Table 1).

    A unit or latent that never varies gives `nan`: its correlation is undefined, and counted as 0
    it would pull an average down. To stream over batches, use `Correlation`.
    """
    return Correlation.of(units, latents).matrix()


class BestMatch(NamedTuple):
    """Each latent's best unit, beside what chance gives."""

    unit: Int64[Tensor, " latents"]
    """The winner; -1 for a latent that never varies."""
    value: Float64[Tensor, " latents"]
    p_value: Float64[Tensor, " latents"]
    """Probability that the best of as many random units does as well."""
    null: float
    """Mean of the same statistic for random units: read `score` against this, not against 0."""
    null_upper: float
    """95 % quantile of it, for one latent."""

    @property
    def score(self) -> float:
        """Mean over the latents that vary: an entry of Table 1."""
        return self.value.nanmean().item()


def best_match(
    correlation: Float[Tensor, "hidden latents"], samples: float | int, *, absolute: bool = False
) -> BestMatch:
    """The unit that correlates best with each latent, and the null of that maximum.

    Args:
        correlation: As `normalized_correlation` gives it. Units that are `nan` do not compete.
        samples: Independent samples behind it. If rows repeat or belong together, their number
            is too large and the null too low: Table 1 has one sample per class, 20 to 50.
        absolute: Let a unit match with either sign. The paper's best match has a sign.
    """
    correlation = correlation.double()
    candidates = int((~correlation.isnan()).any(1).sum())
    value, unit = _strength(correlation, absolute).max(0)
    lost = value.isinf()
    value, unit = value.masked_fill(lost, torch.nan), unit.masked_fill(lost, -1)
    null = null_match(max(candidates, 1), samples, absolute=absolute)
    chance = exceedance(value.cpu().numpy(), max(candidates, 1), samples, absolute=absolute)
    p_value = torch.from_numpy(chance).to(value.device)
    return BestMatch(unit, value, p_value, null.mean, null.upper)


def held_out_match(
    chosen_on: Correlation, scored_on: Correlation, *, absolute: bool = False
) -> Float64[Tensor, " latents"]:
    """Correlation of each latent with the unit that matched best on *other* samples.

    Choosing and scoring on different halves takes out the bias of the maximum: units that know
    nothing score 0 on average. With `absolute` the sign is chosen too, and kept.
    """
    first, second = chosen_on.matrix(), scored_on.matrix()
    unit = _strength(first, absolute).argmax(0, keepdim=True)
    chosen, score = first.gather(0, unit)[0], second.gather(0, unit)[0]
    score = score * chosen.sign() if absolute else score
    return torch.where(chosen.isnan(), torch.nan, score)


def shuffled_scores(
    units: Float[Tensor, "samples hidden"],
    latents: Shaped[Tensor, "samples latents"],
    *,
    rounds: int = 20,
    seed: int = 0,
    absolute: bool = False,
) -> Float64[Tensor, " rounds"]:
    """`BestMatch.score` after shuffling which latents belong to which sample, once per round.

    The null without assumptions on the units: it knows that they resemble each other (fewer
    competitors) and that rare events match rare latents (more luck than a Gaussian has).
    """
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for _ in range(rounds):
        order = torch.randperm(len(units), generator=generator).to(latents.device)
        best = _strength(normalized_correlation(units, latents[order]), absolute).amax(0)
        scores.append(best.masked_fill(best.isinf(), torch.nan).nanmean())
    return torch.stack(scores)


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrelationProbe(AbstractStreamProbe):
    """Mean best match of one batch's latents in each MLP, and its null.

    Made for the batch whose latents it holds. The sums of several batches, each seen by its own
    probe, add up.
    """

    need: ClassVar[Need] = Need.HIDDEN
    latents: Shaped[Tensor, "samples latents"]
    pool: Callable[[Tensor], Tensor] = lambda units: units.flatten(0, -2)
    """Pre-activations to one row per sample. Table 1: `lambda a: a.relu().amax(1)`."""
    samples: float | int | None = None
    """Independent samples behind all rows; the number of rows unless given. A batch that is shown
    twice has twice the rows and no more samples."""

    def observe(self, seen: HiddenCall) -> Sums:
        return Correlation.of(self.pool(seen.preactivation), self.latents).sums()

    def readings(self, place: Place, sums: Sums) -> Iterator[Reading]:
        whole = Correlation.from_sums(sums)
        match = best_match(whole.matrix(), self.samples or whole.count)
        defined = match.score == match.score
        status = OK if defined else "no latent and unit that both vary"
        yield place.reading("latent_correlation", match.score, status=status)
        yield place.reading("latent_correlation_null", match.null)


PROBE = None
"""Needs latents, which a model does not have: make a `CorrelationProbe` with those of a batch."""


def _strength(correlation: Tensor, absolute: bool) -> Tensor:
    """What is maximised; units without a correlation lose."""
    strength = correlation.abs() if absolute else correlation
    return strength.nan_to_num(nan=-torch.inf)

r"""Attention entropy from a few rows, unbiased, with what a confidence interval needs.

Rows are ordered by how many keys they see, which is known without looking at a score, and cut into
strata; two rows are drawn from each. With stratum sizes $N_s$ and draws $x_{s1}, x_{s2}$, the total
is estimated by $\sum_s N_s (x_{s1} + x_{s2})/2$ and the variance of that, without bias, by
$\sum_s v_s$ with $v_s = N_s (N_s - 2) (x_{s1} - x_{s2})^2 / 4$.
"""

import zlib
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from joma.metrics import _attention, _parts, _visible
from joma.probes.base import AttentionCall


class Estimate(NamedTuple):
    """Totals over all rows of a call, estimated per head."""

    nats: Float[Tensor, " head"]
    squares: Float[Tensor, " head"]
    variance: Float[Tensor, " head"]
    """Of the estimate in `nats`."""
    variance_squares: Float[Tensor, " head"]
    """Sum over strata of each one's variance squared: says how well `variance` is known."""
    outcomes: Int[Tensor, "#batch #head query"]
    """What each row chooses among: known for all of them, drawn or not."""

    def sums(self) -> dict[str, Tensor]:
        """The totals, which are additive over calls."""
        return {n: total for n, total in self._asdict().items() if n != "outcomes"}


def estimate(call: AttentionCall, rows: int, generator: torch.Generator) -> Estimate:
    """Entropy totals from `rows` rows (an even number, at least 4), or all if there are fewer."""
    if rows < 4 or rows % 2:
        raise ValueError(f"rows must be even and at least 4, two for each stratum; got {rows}.")
    with _parts.exactly(call):
        call = _visible.checked(call)
        keys = _visible.count(call)
        most = keys.amax(1).expand(call.query.shape[0], -1).flatten().cpu()
        order = most.argsort(stable=True)[(most == 0).sum() :]  # every row that sees a key
        if len(order) <= rows:
            strata, sizes = order[:, None], torch.ones(len(order), dtype=torch.float64)
        else:
            borders = _borders(most[order].double().log(), rows // 2)
            strata, sizes = _draw(order, borders, generator)
        values = torch.unflatten(_entropies(call, strata.flatten()), 1, strata.shape)
    sizes = sizes.to(values)
    variance = torch.zeros_like(values[..., 0])
    if strata.shape[1] == 2:
        variance = sizes * (sizes - 2) * (values[..., 0] - values[..., 1]).square() / 4
    return Estimate(
        nats=(sizes * values.mean(-1)).sum(-1),
        squares=(sizes * values.square().mean(-1)).sum(-1),
        variance=variance.sum(-1),
        variance_squares=variance.square().sum(-1),
        outcomes=_visible.outcomes(call, keys),
    )


def half_width(
    variance: Float[Tensor, " head"], variance_squares: Float[Tensor, " head"]
) -> Float[Tensor, " head"]:
    """Half of the 95 % interval of a total: Student's t with Satterthwaite's degrees of freedom.

    Each stratum knows its variance from two rows only, so the degrees are underestimated and
    the interval is on the wide side: it held in 95 to 98 % of trials, on flat heads and peaked.
    """
    freedom = (variance.square() / variance_squares).nan_to_num(1.0).clamp(min=1.0)
    quantile = torch.as_tensor(stats.t.ppf(0.975, freedom.numpy()))
    return quantile * variance.sqrt()


def generator_of(call: AttentionCall, seed: int) -> torch.Generator:
    """A generator of its own for each call: the same call draws the same rows, another others.

    Its seed mixes `seed` with the bits of some queries, so that a probe needs no state, and
    layers, batches and ranks draw independently. Global random state is left alone.
    """
    step = max(1, call.query.shape[2] // 16)
    some = call.query.detach()[:, :1, ::step].to(torch.float32).cpu().contiguous()
    bits = zlib.crc32(some.numpy().tobytes())
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {bits}".encode()))


def _borders(ceilings: Float[Tensor, " rows"], strata: int) -> Int[Tensor, " borders"]:
    """Where to cut rows of rising ceiling so that no stratum carries most of the variance.

    Half of the measure is the number of rows. The other half is the cumulative root of the
    slope of the ceiling: it equalises size times range (Dalenius and Hodges, 1959), and keeps
    the first rows of a causal call, whose ceilings rise steeply, among themselves.
    """
    rows = len(ceilings)
    slope = ceilings.diff(prepend=ceilings[:1]).sqrt().cumsum(0)
    level = torch.arange(1, rows + 1) / rows + slope / slope[-1].clamp(min=1e-12)
    targets = torch.arange(strata + 1) * (level[-1] / strata)
    borders = torch.searchsorted(level, targets)
    borders[-1] = rows
    least = 2 * torch.arange(strata + 1)  # two rows in each
    borders = (borders - least).cummax(0).values + least
    return borders.minimum(rows - least.flip(0))


def _draw(
    order: Int[Tensor, " rows"], borders: Int[Tensor, " borders"], generator: torch.Generator
) -> tuple[Int[Tensor, "strata two"], Float[Tensor, " strata"]]:
    """Two different rows from each stratum, all pairs equally likely, and the stratum sizes."""
    start, size = borders[:-1], borders.diff()
    first, second = torch.rand(2, len(size), generator=generator, dtype=torch.float64)
    one = (first * size).long()
    two = (second * (size - 1)).long()
    two = two + (two >= one)
    return order[torch.stack([start + one, start + two], -1)], size.double()


def _entropies(call: AttentionCall, rows: Int[Tensor, " drawn"]) -> Float[Tensor, "head drawn"]:
    """Entropy of each drawn row (counted over batch and query), 0 for a head that sees nothing."""
    heads, queries = call.query.shape[1:3]
    values = torch.zeros(heads, len(rows), dtype=torch.float64, device=call.query.device)
    for element in torch.unique(rows // queries).tolist():
        mine = (rows // queries == element).nonzero()[:, 0].to(values.device)
        picked = (rows.to(values.device)[mine] % queries).expand(heads, -1)
        found = _attention.fresh(_parts.pick(call, element, picked), "tiles")
        values[:, mine] = torch.where(found.outcomes > 0, found.entropy, 0.0)[0].double()
    return values

r"""One node, $h = \phi(v^\top b + \xi)$ with $b = x \circ e^z$, trained on samples of two clusters.

The signal is fixed at +1 or -1 (Assumption 1), so the gradients are short enough to write by
hand, and all nodes of a phase map take their steps together, in float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.data.mixtures import pair, sample

TOKENS = 10  # as Figure 4
INIT = 0.01  # deviation of v at the start; at v = 0 a ReLU without bias would have no gradient
BLOWN_UP = 30.0  # z beyond which a node is left as it is: the flow diverges in finite time
_CHUNK = 20  # batches drawn at once, for speed


class Data(NamedTuple):
    r"""Clusters around $\bar x_+$ (signal +1) and 0 (signal -1), Gaussian with unit deviation."""

    separation: float
    r"""$\|\bar x_+\|$."""
    positive: float
    """Probability of the positive cluster."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """What is trained on the data."""

    activation: Literal["linear", "relu"]
    bias: float = 0.0
    trained: bool = False
    """Whether the bias is; attention and weights always are."""
    decay: float = 0.0
    """Of the weights and a trained bias, not of the attention logits."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, and how often the entropy is read."""

    steps: int = 3000
    rate: float = 0.02
    batch: int = 512
    every: int = 10


class Trained(NamedTuple):
    """What became of every node on every data set."""

    steps: Int[Tensor, " times"]
    entropy: Float[Tensor, "data nodes times"]
    """Of softmax(z), in nats, before each step of `steps` and after the last."""
    rise: Float[Tensor, "data nodes"]
    """Total upward movement of the entropy from each step to the next."""
    taken: Int[Tensor, "data nodes"]
    """Steps before the node blew up; all of them if it did not."""


def batches(
    data: Sequence[Data], seed: int, batch: int
) -> Iterator[tuple[Float[Tensor, "data samples tokens"], Float[Tensor, "data samples"]]]:
    """Inputs and signals, a fresh batch each time.

    Every share of positives starts its own stream from `seed`, so data sets have the direction of
    the positive cluster in common, and the draws of one do not depend on which others there are.
    Those that differ in separation alone also have the noise in common: they are one draw, moved.
    """
    streams = {p: torch.Generator().manual_seed(seed) for p in {d.positive for d in data}}
    unit = {p: pair(g, tokens=TOKENS, positive=p) for p, g in streams.items()}  # separation 1
    centre = {p: torch.tensor(c.centres[0], dtype=torch.float64) for p, c in unit.items()}
    while True:
        drawn = {p: sample(c, _CHUNK * batch, streams[p]) for p, c in unit.items()}
        away = {p: (s.signal > 0)[:, None] * centre[p] for p, s in drawn.items()}
        x = [drawn[p].x + (distance - 1) * away[p] for distance, p in data]
        g = [drawn[p].signal for _, p in data]
        yield from zip(
            torch.stack([rows.view(_CHUNK, batch, TOKENS) for rows in x], dim=1),
            torch.stack([rows.view(_CHUNK, batch) for rows in g], dim=1),
            strict=True,
        )


def start(seed: int) -> Float[Tensor, " tokens"]:
    """The weights v before training, the same for all nodes; the logits z are 0."""
    # The stream of the seed itself belongs to the data. Not 2**32: torch drops the upper bits.
    generator = torch.Generator().manual_seed(2**31 + seed)
    return INIT * torch.randn(TOKENS, generator=generator, dtype=torch.float64)


def train(data: Sequence[Data], nodes: Sequence[Node], schedule: Schedule, seed: int) -> Trained:
    """Every node on every data set, by stochastic gradient ascent on E[g h]."""
    relu = torch.tensor([n.activation == "relu" for n in nodes])
    trained, decay, bias = (
        torch.tensor([getattr(n, name) for n in nodes], dtype=torch.float64)
        for name in ("trained", "decay", "bias")
    )
    shape = (len(data), TOKENS, len(nodes))
    z = torch.zeros(shape, dtype=torch.float64)
    v = start(seed)[:, None].expand(shape).clone()
    xi = bias.expand(len(data), 1, -1).clone()
    live = torch.ones_like(xi, dtype=torch.bool)
    rise = torch.zeros_like(xi[:, 0])
    taken = torch.zeros_like(rise, dtype=torch.int64)
    now = _entropy(z)
    read = [now]
    rate, draws = schedule.rate, batches(data, seed, schedule.batch)
    for step in range(1, schedule.steps + 1):
        x, g = next(draws)
        scale = z.exp()
        a = x @ (scale * v) + xi
        slope = g[..., None] * ((a > 0) | ~relu)  # g h'
        pull = scale * (x.mT @ slope) / schedule.batch  # E[g h' b]
        z_next = z + rate * pull * v
        # A node that blows up keeps the last logits that were finite in any useful sense.
        live = live & (z_next.amax(1, keepdim=True) <= BLOWN_UP)
        v = torch.where(live, v + rate * (pull - decay * v), v)
        xi_next = xi + rate * trained * (slope.mean(1, keepdim=True) - decay * xi)
        xi = torch.where(live, xi_next, xi)
        z = torch.where(live, z_next, z)
        before, now = now, _entropy(z)
        rise += (now - before).clamp(min=0)
        taken += live[:, 0]
        if step % schedule.every == 0:
            read.append(now)
    steps = torch.arange(len(read)) * schedule.every
    return Trained(steps, torch.stack(read, dim=-1), rise, taken)


def _entropy(z: Float[Tensor, "data tokens nodes"]) -> Float[Tensor, "data nodes"]:
    log_p = z.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)

"""Rows of `joma bench kernels` about the stable rank, in units of one product W @ x."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from joma.bench._timing import minima, one_thread
from joma.bench.base import Row
from joma.metrics._survey import survey
from joma.metrics.rank import Rows, stable_rank

DRIFT = 0.02
"""Relative change of the matrix between the checkpoints of the warm row."""


def rank_rows() -> Iterator[Row]:
    """Cost, passes and traffic of certified stable ranks; the error of the Frobenius norm."""
    with one_thread():
        yield from _large()
        yield from _passes()
        for rows, cols in ((1024, 256), (2048, 512)):
            yield from _small(rows, cols)
        yield from _frobenius(16384, 4096)


def trained_like(rows: int, cols: int, seed: int = 0) -> Float[Tensor, "rows cols"]:
    """Decaying Gaussian columns and five outliers, somewhat like a trained MLP matrix."""
    generator = torch.Generator().manual_seed(seed)
    decay = torch.arange(1, cols + 1, dtype=torch.float32) ** -0.3
    weight = torch.randn(rows, cols, generator=generator) * decay
    size = torch.linalg.vector_norm(weight[:, 0])
    for factor in (1.6, 1.2, 1.1, 0.9, 0.8):
        u, v = (torch.randn(length, generator=generator) for length in (rows, cols))
        weight += factor * size * torch.outer(u / u.norm(), v / v.norm())
    return 0.02 * weight


def gaussian(rows: int, cols: int, seed: int = 0) -> Float[Tensor, "rows cols"]:
    """A matrix as it is at step 0, whose largest singular values lie close together."""
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed))


def _large() -> Iterator[Row]:
    weight, flat = trained_like(8192, 2048), gaussian(8192, 2048)
    x = torch.ones(2048, 1)
    quick = {"product": lambda: weight @ x, "ours": lambda: stable_rank(weight)}
    slow = {"svdvals": lambda: torch.linalg.svdvals(weight), "flat": lambda: stable_rank(flat)}
    # The quick ones once more after the slow ones, so that all have met the same neighbours.
    seconds = minima(quick, rounds=8) | minima(slow, rounds=2)
    seconds |= {name: min(least, seconds[name]) for name, least in minima(quick, 8).items()}
    at = "8192x2048"
    yield Row(f"stable rank to 1e-3, trained-like {at}", _ratio(seconds, "ours"), "W@x", 45.0)
    svd = _ratio(seconds, "svdvals", "ours")
    yield Row(f"svdvals / stable rank, trained-like {at}", svd, "x", 20.0, at_least=True)
    yield Row(f"stable rank to 1e-3, Gaussian {at}", _ratio(seconds, "flat"), "W@x")
    share = 100 * _traffic(weight)
    yield Row(f"sent per rank / all-gather, 2 ranks, {at}", share, "%", 2.0)


def _passes() -> Iterator[Row]:
    weight = trained_like(8192, 2048)
    cold = stable_rank(weight, columns=4)
    yield Row("block passes, cold, 4 columns", cold.passes, "", 8.0)
    kept = stable_rank(weight).warm
    moved = weight + DRIFT * float(weight.norm()) * gaussian(8192, 2048, seed=1) / 4096.0
    yield Row("block passes, warm, 8 + 8 columns", stable_rank(moved, warm=kept).passes, "", 4.0)


def _small(rows: int, cols: int) -> Iterator[Row]:
    for name, weight in (
        ("Gaussian", gaussian(rows, cols)),
        ("trained-like", trained_like(rows, cols)),
    ):
        seconds = minima(_variants(weight), rounds=10)
        best = min(seconds["svdvals"], seconds["eigvalsh"])
        label = f"stable rank / best full spectrum, {name} {rows}x{cols}"
        yield Row(label, seconds["ours"] / best, "x", 1.3)


def _variants(weight: Float[Tensor, "rows cols"]) -> dict[str, Callable[[], object]]:
    return {
        "ours": lambda: stable_rank(weight),
        "svdvals": lambda: torch.linalg.svdvals(weight),
        "eigvalsh": lambda: torch.linalg.eigvalsh(weight.double().mT @ weight.double()),
    }


def _frobenius(rows: int, cols: int) -> Iterator[Row]:
    whole = Rows.of(gaussian(rows, cols))
    blocks = (block.numpy().astype(np.longdouble) for block in whole.blocks(torch.float32))
    exact = sum(np.square(block).sum() for block in blocks)
    error = abs(survey(whole).squares / float(exact) - 1.0)
    yield Row(f"error of the squared Frobenius norm, {rows}x{cols}", error, "", 1e-7)


def _ratio(seconds: Mapping[str, float], name: str, unit: str = "product") -> float:
    return seconds[name] / seconds[unit]


def _traffic(weight: Float[Tensor, "rows cols"]) -> float:
    """Bytes that each of two owners hands to all-reduce, over the half that a gather would send."""
    sent = 0

    def counted(summand: Tensor) -> Tensor:
        nonlocal sent
        sent += summand.numel() * summand.element_size()
        return summand

    stable_rank(Rows.shard(weight, counted))
    return sent / (weight.numel() * weight.element_size() / 2)

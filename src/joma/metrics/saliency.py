r"""Saliency of tokens measured on data: $\Delta_{lm} = \mathbb E_{q=m}[g\,x_l]$, as a stream.

Tokens with large $|\Delta_{lm}|$ win under a linear activation (Eqn. 3, Theorem 2). A batch is
reduced to sums that add up over batches and ranks (`joma.probes.sums`), for the queries $m$ and
tokens $l$ that were asked for. `joma.theory.saliency` has the same on data that fit in one array.

The signal $g$ points uphill, per sample. Autograd gives the gradient of a mean loss:
multiply it by minus the number of samples in the mean. Take it at the units for $\Delta$
itself, at their pre-activations for $\mathbb E[g h' x_l]$, which drives nonlinear units.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Integer
from torch import Tensor

from joma.probes.base import Sums


def context_frequencies(
    context: Integer[Tensor, "samples context"],
    tokens: Integer[Tensor, " tokens"],
    *,
    padding: int | None = None,
) -> Float64[Tensor, "samples tokens"]:
    """How often each token of interest stands in each context, as a share of its length.

    Positions that hold `padding` are not counted. A context without any token gives `nan`.

    Example:
        >>> context = torch.tensor([[7, 7, 3, 0], [3, 5, 5, 5]])
        >>> context_frequencies(context, torch.tensor([7, 5]), padding=0)
        tensor([[0.6667, 0.0000],
                [0.0000, 0.7500]], dtype=torch.float64)
    """
    counts = torch.stack([(context == token).sum(1) for token in tokens], 1).double()
    present = torch.ones_like(context) if padding is None else (context != padding)
    length = present.sum(1, keepdim=True).double()
    return torch.where(length > 0, counts / length, torch.nan)


def prefix_frequencies(
    ids: Integer[Tensor, "batch length"], tokens: Integer[Tensor, " tokens"]
) -> Float64[Tensor, "batch queries tokens"]:
    """`context_frequencies` of every position but the first, whose context is all before it.

    The queries are `ids[:, 1:]`, and signals go with them: `signal[:, 1:]`.
    """
    seen = torch.stack([(ids == token).cumsum(1)[:, :-1] for token in tokens], 2).double()
    return seen / torch.arange(1, ids.shape[1], device=ids.device)[:, None]


def saliency_sums(
    signal: Float[Tensor, "samples hidden"],
    frequencies: Float[Tensor, "samples tokens"],
    query: Integer[Tensor, " samples"],
    queries: Integer[Tensor, " queries"],
) -> Sums:
    """What one batch adds to the saliencies of the queries of interest.

    Samples that end in another query are left out. The largest entry has `queries * tokens *
    hidden` numbers in float64.

    Args:
        signal: Backpropagated signal of each sample at each unit, uphill.
        frequencies: Token frequencies of each sample.
        query: The query of each sample.
        queries: The queries of interest.
    """
    signal, frequencies = signal.detach(), frequencies.detach()
    parts = []
    for m in queries:
        rows = (query == m).nonzero()[:, 0]
        x, g = frequencies[rows].double(), signal[rows].double()
        parts.append((x.T @ g, x.sum(0), x.new_tensor(len(rows))))
    joint, presence, samples = (torch.stack(part) for part in zip(*parts, strict=True))
    return {"joint": joint, "presence": presence, "samples": samples}


class Saliency(NamedTuple):
    """Saliency of tokens for queries, and the two factors it is the product of."""

    saliency: Float64[Tensor, "queries tokens hidden"]
    r"""$\Delta_{lm} = \mathbb E_{q=m}[g\,x_l]$, per unit."""
    discriminancy: Float64[Tensor, "queries tokens hidden"]
    r"""$\mathbb E[g|l,m]$: the mean signal where the token occurs; `nan` if it never does."""
    cooccurrence: Float64[Tensor, "queries tokens"]
    r"""$P(l|m)$: how often the token stands in front of the query."""
    samples: Float64[Tensor, " queries"]


def saliency(sums: Sums) -> Saliency:
    """Saliencies from added-up sums; `nan` for a query that never occurred.

    Example:
        >>> signal, x = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5], [1.0]])
        >>> m = torch.tensor([9])
        >>> saliency(saliency_sums(signal, x, m.repeat(2), m)).saliency.item()
        1.75
    """
    joint, presence, samples = sums["joint"], sums["presence"], sums["samples"]
    return Saliency(
        saliency=joint / samples[:, None, None],  # 0 / 0 is nan, as it should be
        discriminancy=joint / presence[:, :, None],
        cooccurrence=presence / samples[:, None],
        samples=samples,
    )


PROBE = None
"""Needs token ids and gradients of a loss, which no probe is shown: call `saliency_sums`."""

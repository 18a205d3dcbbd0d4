r"""Saliency of a token: $\Delta_{lm} = \mathbb E_{q=m}[g\,x_l]$, discriminancy times co-occurrence.

It drives the linear dynamics (Eqn. 3, Theorem 2): the token with the largest $|\Delta_{lm}|$ wins.
Exact on finite data; rows of `x` are token frequencies of samples with query $m$.
"""

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array, Form
from joma.theory import flow
from joma.theory.flow import Layer, Trajectory

PAPER = {"Section 3": "saliency"}


def saliency(
    g: Float[Array, "samples *hidden"],
    x: Float[Array, "samples tokens"],
    weights: Float[Array, " samples"] | None = None,
    *,
    form: Form = "corrected",
) -> Float[Array, "tokens *hidden"]:
    r"""$\Delta_{lm} = \mathbb E_{q=m}[g\,x_l]$, which equals `discriminancy` times `cooccurrence`.

    Footnote 1 reaches that product through $\sum_i g[i]\,P(l|m,i)\,P(l|m)$, which forgets the
    probability of the sample and counts the token twice (E31); `form="printed"` computes that.

    Args:
        g: Backpropagated signal, per sample and node.
        x: Token frequencies of each sample.
        weights: Probability of each sample; equal unless given.
        form: As corrected or as printed.
    """
    if form == "printed":
        frequency = cooccurrence(x, weights).reshape(-1, *(1,) * (g.ndim - 1))
        return np.asarray(x.T @ g * frequency)
    return np.asarray((x * _probability(x, weights)).T @ g)


def cooccurrence(
    x: Float[Array, "samples tokens"], weights: Float[Array, " samples"] | None = None
) -> Float[Array, " tokens"]:
    r"""$P(l|m) = \mathbb E_{q=m}[x_l]$: how often the token stands in front of the query."""
    return np.asarray((x * _probability(x, weights)).sum(0))


def discriminancy(
    g: Float[Array, "samples *hidden"],
    x: Float[Array, "samples tokens"],
    weights: Float[Array, " samples"] | None = None,
) -> Float[Array, "tokens *hidden"]:
    r"""$\mathbb E[g|l,m]$: the mean signal where the token occurs; `nan` if it never does."""
    joint = x * _probability(x, weights)
    total = joint.sum(0)
    posterior = joint / np.where(total > 0, total, np.nan)
    return np.asarray(posterior.T @ g)


def along(layer: Layer, trajectory: Trajectory) -> Float[Array, "times tokens hidden"]:
    r"""$\mathbb E[g_kh_k'x]$ at every point of a run: $\Delta$ itself for a linear activation."""
    points = zip(trajectory.W, trajectory.z, strict=True)
    pulls = (flow.node_pull(layer, flow.forward(layer, W, z)) for W, z in points)
    return np.stack([layer.x.T @ pull for pull in pulls])


def stationarity(delta: Float[Array, "times tokens *hidden"]) -> Float[Array, " times"]:
    r"""How far $\Delta(t)$ has moved from its start, relative to it: 0 under Assumption 1.

    `nan` throughout if the start is zero.
    """
    flat = delta.reshape(len(delta), -1)
    start = np.linalg.norm(flat[0])
    return np.asarray(np.linalg.norm(flat - flat[0], axis=1) / (start if start > 0 else np.nan))


def _probability(x: Array, weights: Array | None) -> Array:
    return np.full((len(x), 1), 1 / len(x)) if weights is None else weights[:, None]

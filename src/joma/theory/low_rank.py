r"""Linear activation, exp attention, several hidden nodes: the weights tend to low rank (slides).

Row $l$ of $V$ holds one token's weight in every hidden node. It moves along the fixed direction
$\Delta_l$, and its length obeys Theorem 2 with $|\Delta_l|$ as the saliency: `joma.theory.linear`
does the work. Keywords are those of that module, with `v0` a matrix.
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array, Form
from joma.theory import linear

PAPER = {"Slides, K > 1": "solution"}

Start: TypeAlias = Float[Array, "tokens hidden"] | float
"""The weights at $t = 0$; a number stands for the same weight everywhere."""


def velocity(
    v: Float[Array, "*times tokens hidden"],
    delta: Float[Array, "tokens hidden"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    c: linear.PerToken = 0.0,
    form: Form = "corrected",
) -> Float[Array, "*times tokens hidden"]:
    r"""$\dot V = \mathrm{diag}(\exp(\frac12(V\circ V)\mathbf 1))\Delta/A$ at $T = \kappa = 1$.

    The slide has $\mathrm{diag}(\exp(\frac12 V\circ V)\mathbf 1)$, the sum over the hidden nodes
    outside the exponential: at $V = 0$ it is $K$ times too fast (E12).
    """
    squares = kappa * v**2 / (2 * temperature**2)
    outer = np.asarray(c) / temperature
    weight: Array
    if form == "printed":
        weight = np.exp(squares).sum(-1) * np.exp(outer)
    else:
        weight = np.exp(squares.sum(-1) + outer)
    return weight[..., None] * delta / normaliser


def velocity_direction(
    v: Float[Array, "*times tokens hidden"],
    delta: Float[Array, "tokens hidden"],
    *,
    temperature: float = 1.0,
    kappa: float = 1.0,
    c: linear.PerToken = 0.0,
) -> Float[Array, "*times tokens hidden"]:
    r"""$\dot V$ up to a positive factor: the fastest row is its $\Delta_l$, the others are shrunk.

    It has the stable rank of $\dot V$ and does not overflow near the blow-up.
    """
    exponent = kappa * (v**2).sum(-1) / (2 * temperature**2) + np.asarray(c) / temperature
    weight: Array = np.exp(exponent - exponent.max(-1, keepdims=True))
    return weight[..., None] * delta


def blowup_time(
    delta: Float[Array, "tokens hidden"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: Start = 0.0,
    c: linear.PerToken = 0.0,
) -> float:
    r"""Time at which the first row diverges; from rest $As\sqrt{\pi/2}/\max_l|\Delta_l|$."""
    length, _, along, offset = _rows(delta, v0, c, temperature, kappa)
    return linear.blowup_time(
        length, normaliser=normaliser, temperature=temperature, kappa=kappa, v0=along, c=offset
    )


def solution(
    t: Float[Array, " times"],
    delta: Float[Array, "tokens hidden"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: Start = 0.0,
    c: linear.PerToken = 0.0,
) -> Float[Array, "times tokens hidden"]:
    r"""Exact $V(t)$.

    From rest $V = \mathrm{diag}(\cdot)\Delta$, so its algebraic rank never changes. Only its
    stable rank falls, and not monotonically (E23).

    Args:
        t: Times to evaluate, each in `[0, blowup_time(delta))`.
        delta: $\Delta_{lk} = \mathbb E[g_k x_l]$.
        normaliser: $A$ of Eqn. 1.
        temperature: $T$.
        kappa: Learning-rate ratio $\eta_z/\eta_w$.
        v0: Weights at $t = 0$.
        c: $z(0) - \kappa\sum_k v_{lk}(0)^2/(2T)$ of each token.

    Raises:
        ValueError: If a time is negative, or at or past the blow-up.
    """
    length, direction, along, offset = _rows(delta, v0, c, temperature, kappa)
    ahead = linear.solution(
        t,
        length,
        normaliser=normaliser,
        temperature=temperature,
        kappa=kappa,
        v0=along,
        c=offset,
    )
    return v0 + (ahead - along)[..., None] * direction


def near_blowup(
    eps: Float[Array, " times"],
    delta: Float[Array, "tokens hidden"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: Start = 0.0,
    c: linear.PerToken = 0.0,
) -> Float[Array, "times tokens hidden"]:
    r"""Exact $V$ when the fraction `eps` of the time to the blow-up is left, `eps` in `(0, 1]`.

    Full precision down to the smallest float: the longest row grows like
    $s\sqrt{2\ln(1/\epsilon)}$, so the stable rank of $V$ tends to 1 only logarithmically.
    """
    if not np.all(eps > 0):
        raise ValueError(
            "eps must lie in (0, 1]: at eps = 0 the longest row is infinite;"
            f" got min eps = {eps.min():.6g}."
        )
    length, direction, along, offset = _rows(delta, v0, c, temperature, kappa)
    ahead = linear.near_blowup(
        eps,
        length,
        normaliser=normaliser,
        temperature=temperature,
        kappa=kappa,
        v0=along,
        c=offset,
    )
    return v0 + (ahead - along)[..., None] * direction


def stable_rank(matrix: Float[Array, "*times tokens hidden"]) -> Float[Array, "*times"]:
    r"""$\|V\|_F^2/\|V\|_2^2$ of each matrix, between 1 and its rank; `nan` for a zero matrix.

    Example:
        >>> stable_rank(np.diag([2.0, 1.0, 1.0])[None])
        array([1.5])
    """
    sigma = np.linalg.svd(matrix, compute_uv=False)
    with np.errstate(invalid="ignore"):
        return np.asarray(((sigma / sigma[..., :1]) ** 2).sum(-1))


def _rows(
    delta: Array, v0: Start, c: linear.PerToken, temperature: float, kappa: float
) -> tuple[Array, Array, Array, Array]:
    """Each row as one token of Theorem 2: saliency, direction, start along it, its constant."""
    length = np.linalg.norm(delta, axis=-1)
    direction = delta / np.where(length == 0, 1.0, length)[:, None]
    start = np.broadcast_to(np.asarray(v0, dtype=float), delta.shape)
    along = (start * direction).sum(-1)
    # What stands across the direction never moves: to the row it is part of the constant.
    across = ((start - along[:, None] * direction) ** 2).sum(-1)
    return length, direction, along, c + kappa * across / (2 * temperature)

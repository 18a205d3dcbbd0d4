r"""Theorem 1 and what it becomes in general: quantities that training conserves.

Unnormalised attention enters the layer only through $\sigma(z_l) v_{kl}$, so the loss does not
notice when $v_{kl}$ shrinks as $\sigma(z_l)$ grows. The invariant is the charge of that symmetry.
It needs orthonormal fixed embeddings and gradient flow; it does not need a homogeneous
activation, a residual connection, or Assumption 1. `joma.theory.drift` says what finite steps,
momentum, decay and LayerNorm do to it, `joma.theory.charges` what replaces it in a Transformer.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from joma._core.errors import JomaError
from joma._core.typing import Array, Form
from joma.theory import activations
from joma.theory.activations import Attention

PAPER = {"Theorem 1": "conserved", "Eqn. 17": "softmax_velocity", "Eqn. 18": "predicted_logits"}


def conserved(
    z: Float[Array, "*times tokens"],
    v: Float[Array, "*times tokens hidden"],
    *,
    attention: str | Attention = "exp",
    kappa: float = 1.0,
    temperature: float = 1.0,
    mean_attention: Float[Array, " tokens"] | None = None,
    form: Form = "corrected",
) -> Float[Array, "*times tokens"]:
    r"""The constant $c$ of Theorem 1, per token.

    Linear $z^2 - \kappa\sum_k v_k^2$; exp $z - \frac{\kappa}{2T}\sum_k v_k^2$; any other
    unnormalised $\sigma$: $T^2\Psi(z/T) - \frac{\kappa}{2}\sum_k v_k^2$ with $\Psi' =
    \sigma/\sigma'$. These are exact under the flow.

    Softmax is not: $z - \frac{\kappa}{2T}\sum_k(v_k^2 - \|v_k\|^2\bar b)$ is constant only while
    `mean_attention` is, and $\bar b$ moves whenever $z$ does (E15). Exact is `logit_sum`.
    `form="printed"` is the softmax case as in the theorem's text,
    $\frac12\sum_k v_k^2\|v_k\|^2\bar b$, which has lost its minus sign (E1).
    """
    sigma = activations.attention(attention)
    if sigma.normalised:
        return z - _softmax_sum(v, mean_attention, kappa / (2 * temperature), form)
    return conserved_over_queries(
        z[..., None, :], v, attention=sigma, kappa=kappa, temperature=temperature
    )


def conserved_over_queries(
    z: Float[Array, "*times queries tokens"],
    v: Float[Array, "*times tokens hidden"],
    *,
    attention: str | Attention = "exp",
    kappa: float = 1.0,
    temperature: float = 1.0,
) -> Float[Array, "*times tokens"]:
    r"""What queries that share $W$ conserve together, for unnormalised attention.

    Only the sum over queries is determined, $\sum_m z_m - \frac{\kappa}{2T}\sum_k v_k^2$ for exp;
    the theorem's per-query form does not hold then (E25).
    """
    sigma = activations.attention(attention)
    if sigma.name == "linear":
        return np.asarray((z**2).sum(-2) - kappa * _energy(v))
    if sigma.name == "exp":
        return np.asarray(z.sum(-2) - kappa / (2 * temperature) * _energy(v))
    charge = temperature**2 * psi(z / temperature, attention=sigma).sum(-2)
    return np.asarray(charge - kappa / 2 * _energy(v))


def predicted_logits(
    v: Float[Array, "*times tokens hidden"],
    c: Float[Array, " tokens"] | float = 0.0,
    *,
    attention: str | Attention = "exp",
    kappa: float = 1.0,
    temperature: float = 1.0,
    mean_attention: Float[Array, " tokens"] | None = None,
    form: Form = "corrected",
) -> Float[Array, "*times tokens"]:
    r"""Attention logits read off the lower MLP weights by Theorem 1; the inverse of `conserved`.

    For linear attention this is the root $|z|$: give it the sign of $z(0)$, which the flow keeps
    when `c > 0`. Where no $z$ fits, `nan`.
    """
    sigma = activations.attention(attention)
    rate = kappa / (2 * temperature)
    if sigma.normalised:
        return np.asarray(_softmax_sum(v, mean_attention, rate, form) + c)
    if sigma.name == "exp":
        return np.asarray(rate * _energy(v) + c)
    if sigma.name != "linear":
        raise JomaError(
            f"predicted_logits inverts Theorem 1 for linear, exp and softmax; got {sigma.name!r}. "
            "Compare `conserved` at two times instead."
        )
    square = kappa * _energy(v) + c
    return np.sqrt(np.where(square >= 0, square, np.nan))


def path_integral_logits(
    v: Float[Array, "times tokens hidden"],
    mean_attention: Float[Array, "times tokens"],
    z0: Float[Array, " tokens"],
    *,
    kappa: float = 1.0,
    temperature: float = 1.0,
) -> Float[Array, "times tokens"]:
    r"""Softmax logits with $\bar b$ allowed to move: Eqn. 17 integrated along the path.

    $z = z_0 + \frac{\kappa}{2T}\big[\sum_k v_k^2 - \int \bar b\,d\sum_k\|v_k\|^2\big]_0^t$, by the
    trapezoidal rule, so `v` should be sampled finely. It still assumes
    $\mathbb E[g_kh_k'bb^\top] = \bar b\,\mathbb E[g_kh_k'b]^\top$ for every node (E15).
    """
    energy = _energy(v)
    mean = (mean_attention[1:] + mean_attention[:-1]) / 2
    flux = mean * np.diff(energy.sum(-1))[:, None]
    spent = np.concatenate([np.zeros((1, len(z0))), np.cumsum(flux, axis=0)])
    return np.asarray(z0 + kappa / (2 * temperature) * (energy - energy[0] - spent))


def softmax_velocity(
    v: Float[Array, "tokens hidden"],
    v_dot: Float[Array, "tokens hidden"],
    mean_attention: Float[Array, " tokens"],
    *,
    kappa: float = 1.0,
    temperature: float = 1.0,
    form: Form = "corrected",
) -> Float[Array, " tokens"]:
    r"""Eqn. 17: $\dot z = \frac{\kappa}{T}\sum_k(\dot v_k\circ v_k - \bar b\,\dot v_k^\top v_k)$.

    The time derivative of `predicted_logits` with $\bar b$ held fixed, in either form (E1).
    """
    work = v_dot * v
    if form == "corrected":
        rate = work.sum(1) - mean_attention * work.sum()
    else:
        rate = (work * (v**2).sum(0) + v**2 * work.sum(0)).sum(1) * mean_attention
    return np.asarray(kappa / temperature * rate)


def logit_sum(z: Float[Array, "*times tokens"]) -> Float[Array, "*times"]:
    r"""$\mathbf 1^\top z$: all that softmax attention conserves, and exactly, at any step size.

    Softmax does not see a shift of all logits; that is the only symmetry it leaves.
    """
    return np.asarray(z.sum(-1))


def psi(s: Float[Array, "*shape"], *, attention: str | Attention = "exp") -> Float[Array, "*shape"]:
    r"""$\Psi(s)$ with $\Psi' = \sigma/\sigma'$: closed form if known, else quadrature from 0."""
    sigma = activations.attention(attention)
    if sigma.normalised:
        raise JomaError("Psi exists for unnormalised attention; softmax conserves logit_sum only.")
    if sigma.psi is not None:
        return sigma.psi(s)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    inside = s[..., None] * (nodes + 1) / 2
    return np.asarray(s / 2 * (weights * sigma.sigma(inside) / sigma.slope(inside)).sum(-1))


def embedding_charge(
    z: Float[Array, "*times tokens"],
    U_C: Float[Array, "*times embed tokens"],
    *,
    attention: str | Attention = "exp",
    kappa: float = 1.0,
    temperature: float = 1.0,
) -> Float[Array, "*times tokens"]:
    r"""What learned embeddings conserve instead: for exp $z_l - \frac{\kappa}{2T}\|u_l\|^2$.

    The token's embedding now balances its logit, and $v = U_C^\top w$ no longer does.
    """
    return conserved(
        z, np.swapaxes(U_C, -1, -2), attention=attention, kappa=kappa, temperature=temperature
    )


def weight_balance(
    W: Float[Array, "*times embed hidden"],
    U_C: Float[Array, "*times embed tokens"],
    u_q: Float[Array, "*times embed queries"],
) -> Float[Array, "*times embed embed"]:
    r"""$WW^\top - U_CU_C^\top - u_qu_q^\top$, conserved when embeddings are learned with $W$."""
    return _gram(W) - _gram(U_C) - _gram(u_q)


class Agreement(NamedTuple):
    """Three views of one prediction. The first alone hides a wrong amplitude."""

    correlation: float
    """Normalised correlation of the displacements from `z0`: direction only."""
    slope: float
    """Least-squares slope of the true displacement on the predicted one; 1 is right."""
    relative_error: float
    """Length of the error over length of the true displacement."""


def agreement(
    z: Float[Array, " tokens"],
    z0: Float[Array, " tokens"],
    predicted: Float[Array, " tokens"],
) -> Agreement:
    """How well predicted logits describe the way from `z0` to `z`.

    Correlation, the paper's measure (Figure 2), is .995 there while the prediction is nine times
    too large (E15): read all three. A displacement of zero leaves them undefined, `nan`.

    Example:
        >>> zero, z = np.zeros(3), np.array([1.0, 2.0, 3.0])
        >>> agreement(z, zero, 10 * z)
        Agreement(correlation=1.0, slope=0.1, relative_error=9.0)
    """
    moved, expected = z - z0, predicted - z0
    return Agreement(
        correlation=_ratio(*_centred_products(moved, expected)),
        slope=_ratio(float(moved @ expected), float(expected @ expected)),
        relative_error=_ratio(_length(z - predicted), _length(moved)),
    )


def _centred_products(a: Array, b: Array) -> tuple[float, float]:
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b), float(np.sqrt((a @ a) * (b @ b)))


def _length(a: Array) -> float:
    return float(np.linalg.norm(a))


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else float("nan")


def _gram(matrix: Array) -> Array:
    return np.asarray(matrix @ np.swapaxes(matrix, -1, -2))


def _energy(v: Array) -> Array:
    return np.asarray((v**2).sum(-1))


def _softmax_sum(v: Array, mean_attention: Array | None, rate: float, form: Form) -> Array:
    if mean_attention is None:
        raise JomaError(
            "Softmax attention needs mean_attention, the mean scores of flow.mean_scores. Without "
            "it only logit_sum is known to be conserved."
        )
    per_node = (v**2).sum(-2, keepdims=True)  # [*times, 1, hidden]
    if form == "printed":
        return np.asarray(rate * (v**2 * per_node).sum(-1) * mean_attention)
    return np.asarray(rate * (_energy(v) - per_node.sum(-1) * mean_attention))

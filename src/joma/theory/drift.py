r"""How far finite steps, momentum, decay, LayerNorm and overlapping embeddings carry Theorem 1.

Each break has its law. Plain SGD has an exact one, step by step and for mini-batches too; Adam
and other per-coordinate rules have none, since they break the symmetry behind the invariant.
"""

from itertools import pairwise

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline

from joma._core.errors import JomaError
from joma._core.typing import Array
from joma.theory import flow
from joma.theory.flow import Layer

PAPER: dict[str, str] = {}  # beyond the paper: it treats gradient flow only


def quadratic_variation(
    v: Float[Array, "steps tokens hidden"],
) -> Float[Array, "steps tokens"]:
    r"""$\sum_{t<n}\sum_k (v_{k,t+1} - v_{k,t})^2$ up to each step; 0 at the first."""
    squares = (np.diff(v, axis=0) ** 2).sum(-1)
    return np.concatenate([np.zeros((1, v.shape[1])), np.cumsum(squares, axis=0)])


def sgd_defect(
    v: Float[Array, "steps tokens hidden"], *, kappa: float = 1.0, temperature: float = 1.0
) -> Float[Array, "steps tokens"]:
    r"""What SGD with exp attention has added to $z - \frac{\kappa}{2T}\sum_k v_k^2$, exactly.

    Minus $\frac{\kappa}{2T}$ times the quadratic variation of $v$: negative, $O(\eta)$ over a fixed
    horizon, and valid for full batches, mini-batches and learning-rate schedules alike.
    """
    return np.asarray(-kappa / (2 * temperature) * quadratic_variation(v))


def linear_attention_step(
    z: Float[Array, " tokens"],
    v: Float[Array, "tokens hidden"],
    s: Float[Array, "tokens hidden"],
    learning_rate: float,
    *,
    kappa: float = 1.0,
) -> Float[Array, " tokens"]:
    r"""What one SGD step with linear attention adds to $z^2 - \kappa\sum_k v_k^2$, exactly.

    $\eta^2[\kappa^2(\sum_k s_k\circ v_k)^2 - \kappa z^2\circ\sum_k s_k^2]$ with $s_k = \mathbb
    E[g_kh_k'x]/(AT)$. Unlike exp attention it has no fixed sign.
    """
    work = (s * v).sum(1)
    return np.asarray(learning_rate**2 * (kappa**2 * work**2 - kappa * z**2 * (s**2).sum(1)))


def momentum_factor(beta: float) -> float:
    r"""Drift under heavy ball over that of SGD with rate $\eta/(1-\beta)$, for small $\eta$.

    Example:
        >>> round(momentum_factor(0.9), 12)
        19.0
    """
    return (1 + beta) / (1 - beta)


def decayed(
    times: Float[Array, " times"],
    initial: Float[Array, " tokens"],
    v: Float[Array, "times tokens hidden"],
    *,
    decay_w: float,
    decay_z: float,
    attention: str = "exp",
    kappa: float = 1.0,
    temperature: float = 1.0,
) -> Float[Array, "times tokens"]:
    r"""Theorem 1's constant under the flow with weight decay, given the $v(t)$ that was reached.

    With $\lambda_w$ = `decay_w` and $\lambda_z$ = `kappa * decay_z`,
    exp: $\dot I = -\lambda_z I + \frac{\kappa}{T}(\lambda_w - \frac12\lambda_z)\sum_k v_k^2$,
    linear: $\dot I = -2\lambda_zI + 2\kappa(\lambda_w - \lambda_z)\sum_kv_k^2$.
    So $\lambda_z = 2\lambda_w$ (linear: $\lambda_z = \lambda_w$) leaves a pure exponential, and any
    other choice makes the invariant depend on the path.

    Args:
        times: From 0, where the constant is `initial`.
        initial: `invariants.conserved` at time 0.
        v: Along the run; splined between `times`.
        decay_w: Weight decay of `W`, as in `flow.integrate`.
        decay_z: Weight decay of `z`.
        attention: `exp` or `linear`.
        kappa: Learning rate of `z` over that of `W`.
        temperature: Of the attention; linear attention does not depend on it.
    """
    rate_z = kappa * decay_z
    if attention == "exp":
        rate, push = rate_z, kappa / temperature * (decay_w - rate_z / 2)
    elif attention == "linear":
        rate, push = 2 * rate_z, 2 * kappa * (decay_w - rate_z)
    else:
        raise JomaError(f"The decay law is known for exp and linear attention; got {attention!r}.")
    energy = CubicSpline(times, (v**2).sum(-1))
    nodes, weights = np.polynomial.legendre.leggauss(5)
    path = [initial]
    for start, end in pairwise(times.tolist()):
        inside = start + (end - start) * (nodes + 1) / 2
        kernel = weights * (end - start) / 2 * np.exp(-rate * (end - inside))
        path.append(path[-1] * np.exp(-rate * (end - start)) + push * kernel @ energy(inside))
    return np.stack(path)


def layer_norm_defect(
    layer: Layer,
    W: Float[Array, "embed hidden"],
    z: Float[Array, " tokens"],
    *,
    kappa: float = 1.0,
) -> Float[Array, " tokens"]:
    r"""Rate at which LayerNorm changes the invariant of exp attention.

    It is $-\frac{\kappa}{T}\mathbb E[b^2 S/\|f\|^2]$ with $S = \sum_kg_kh_k'a_k$, and does not
    shrink with the learning rate.
    """
    _require_exp(layer)
    seen = flow.forward(layer, W, z)
    work = (flow.node_pull(layer, seen) * seen.a).sum(1, keepdims=True)
    return np.asarray(-kappa / layer.temperature * (seen.b**2 * work / seen.length**2).sum(0))


def overlap_defect(
    layer: Layer,
    W: Float[Array, "embed hidden"],
    z: Float[Array, " tokens"],
    *,
    kappa: float = 1.0,
) -> Float[Array, " tokens"]:
    r"""Rate at which overlapping embeddings change the invariant of exp attention.

    It is $-\frac{\kappa}{T}\sum_k((G-I)\mathbb E[g_kh_k'b] + e\,\mathbb E[g_kh_k'])\circ v_k$
    with $G = U_C^\top U_C$, $e = U_C^\top u_q$: linear in the overlaps, so almost orthogonal
    embeddings give an almost conserved quantity.
    """
    _require_exp(layer)
    U_C, u_q = layer.embeddings
    seen = flow.forward(layer, W, z)
    pull = flow.node_pull(layer, seen)
    extra = (U_C.T @ U_C - np.eye(U_C.shape[1])) @ (seen.b.T @ pull)
    if layer.residual:
        extra = extra + U_C.T @ u_q * pull.sum(0)
    return np.asarray(-kappa / layer.temperature * (extra * layer.context(W)).sum(1))


def balanced_logits(
    z: Float[Array, " tokens"],
    before: Float[Array, "tokens hidden"],
    after: Float[Array, "tokens hidden"],
    *,
    kappa: float = 1.0,
    temperature: float = 1.0,
) -> Float[Array, " tokens"]:
    r"""Logits after a step of $v$ that keeps the exp invariant to rounding, at any step size.

    $z + \frac{\kappa}{T}\sum_k (v_k' - v_k)\circ(v_k + v_k')/2$: the SGD update with the weights of
    the middle of the step in place of those at its start.
    """
    work = ((after - before) * (after + before) / 2).sum(1)
    return np.asarray(z + kappa / temperature * work)


def _require_exp(layer: Layer) -> None:
    if layer.attention != "exp":
        raise JomaError(f"This defect is derived for exp attention; got {layer.attention!r}.")

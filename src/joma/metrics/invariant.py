r"""How well Theorem 1 describes a trained layer: correlation, slope and relative error together.

The paper reports normalised correlation alone (Figure 2). It is .995 there while the prediction is
nine times too large (E15), and 1 at the start by construction, so none of the three is given
without the others, and all are taken of displacements from the start.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from joma._core.typing import Array
from joma.theory import activations, invariants
from joma.theory.activations import Attention
from joma.theory.invariants import Agreement


def invariant_residual(
    z: Float[Tensor, " tokens"],
    v: Float[Tensor, "tokens hidden"],
    z0: Float[Tensor, " tokens"],
    v0: Float[Tensor, "tokens hidden"],
    *,
    attention: str | Attention = "exp",
    kappa: float = 1.0,
    temperature: float = 1.0,
    mean_attention: Float[Tensor, " tokens"] | None = None,
) -> Agreement:
    r"""Agreement of the logits `z` with those that Theorem 1 reads off `v`, from `(z0, v0)` on.

    Exact, up to the step size, for linear and exp attention. For softmax the theorem takes
    $\bar b$ to be constant, which fails as soon as attention moves: there `path_residual` is the
    fair test.

    Args:
        z: Attention logits of one query.
        v: Lower MLP weights in the basis of the tokens, $V = U_C^\top W$.
        z0: Logits at the reference; not zero for linear attention (E16).
        v0: Weights at the reference.
        attention: `linear`, `exp` or `softmax`.
        kappa: Learning rate of `z` over that of `W`.
        temperature: Of the attention.
        mean_attention: $\bar b$ at the reference, for softmax.

    Returns:
        `correlation`, `slope` and `relative_error`; `nan` if nothing moved.

    Example:
        >>> import torch
        >>> v, z0 = torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3)
        >>> invariant_residual(v[:, 0] ** 2 / 2, v, z0, 0 * v)
        Agreement(correlation=1.0, slope=1.0, relative_error=0.0)
    """
    sigma = activations.attention(attention)
    now, start, weights, first = (_array(tensor) for tensor in (z, z0, v, v0))
    options: dict[str, Any] = {
        "attention": sigma,
        "kappa": kappa,
        "temperature": temperature,
        "mean_attention": None if mean_attention is None else _array(mean_attention),
    }
    c = invariants.conserved(start, first, **options)
    predicted = invariants.predicted_logits(weights, c, **options)
    if sigma.name == "linear":  # the root of z²; the flow keeps the sign
        predicted = np.copysign(predicted, start)
    return invariants.agreement(now, start, predicted)


def path_residual(
    z: Float[Tensor, "times tokens"],
    v: Float[Tensor, "times tokens hidden"],
    mean_attention: Float[Tensor, "times tokens"],
    *,
    kappa: float = 1.0,
    temperature: float = 1.0,
) -> Agreement:
    r"""Agreement of softmax logits with the path-integral form of Theorem 1, at the last time.

    Lets $\bar b$ move. The points should be close together; the first is the reference.
    """
    logits, weights, mean = (_array(tensor) for tensor in (z, v, mean_attention))
    predicted = invariants.path_integral_logits(
        weights, mean, logits[0], kappa=kappa, temperature=temperature
    )
    return invariants.agreement(logits[-1], logits[0], predicted[-1])


PROBE = None
"""Needs the logits of Eqn. 1, which no other model has: call `invariant_residual`."""


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().double().cpu().numpy())

r"""What softmax Transformers conserve under gradient flow, as functions of their weights.

A head sees $W_Q, W_K$ only through $W_Q^\top W_K$ and $W_V, W_O$ only through $W_OW_V$, a ReLU
unit its input and output weights only through their product of scales. Each such symmetry has a
charge. Masks, the softmax, LayerNorm in front of the projections, residuals, the loss and every
other layer do not matter. What stands between a projection and its partner does: rotary
encodings leave part of the charge (`rotary_charge`), normalised queries and keys only its trace.

Kunin et al. (arXiv 2012.04728) found such charges and their drift under finite steps, momentum and
decay, Marcotte et al. (arXiv 2506.06194) all those of an attention layer; both came before us.
Tran et al. (arXiv 2606.17816) treat rotary encodings and gated units.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from joma._core.errors import JomaError
from joma._core.typing import Array

PAPER: dict[str, str] = {}  # the paper merges W_Q, W_K into z and W_V into the embeddings


def by_head(weight: Float[Array, "rows embed"], heads: int) -> Float[Array, "head width embed"]:
    """A projection `[heads * width, embed]`, as layers store it, cut into its heads.

    For an output projection pass `W_O.T` and swap the last two axes of the result.
    """
    if len(weight) % heads:
        raise JomaError(f"{len(weight)} rows do not divide into {heads} heads.")
    return weight.reshape(heads, -1, weight.shape[1])


def qk_charge(
    W_Q: Float[Array, "*head width embed"],
    W_K: Float[Array, "*head width embed"],
    b_Q: Float[Array, "*head width"] | None = None,
    b_K: Float[Array, "*head width"] | None = None,
) -> Float[Array, "*head width width"]:
    r"""$W_QW_Q^\top - W_KW_K^\top$ of each head, with biases appended to the weights as a column.

    Softmax does not see the key bias, so without rotary encodings $b_K$ never moves and the charge
    holds with or without it; $b_Q$ has to be included.
    """
    return _gram(W_Q, b_Q) - _gram(W_K, b_K)


def vo_charge(
    W_V: Float[Array, "*head width embed"],
    W_O: Float[Array, "*head out width"],
    b_V: Float[Array, "*head width"] | None = None,
) -> Float[Array, "*head width width"]:
    r"""$W_VW_V^\top - W_O^\top W_O$ of each head, $b_V$ appended; the output bias takes no part."""
    return _gram(W_V, b_V) - _gram(np.swapaxes(W_O, -1, -2), None)


def grouped_qk_charge(
    W_Q: Float[Array, "*head group width embed"],
    W_K: Float[Array, "*head width embed"],
    b_Q: Float[Array, "*head group width"] | None = None,
    b_K: Float[Array, "*head width"] | None = None,
) -> Float[Array, "*head width width"]:
    """`qk_charge` when a group of query heads shares one key head: the queries add up."""
    return np.asarray(_gram(W_Q, b_Q).sum(-3) - _gram(W_K, b_K))


def grouped_vo_charge(
    W_V: Float[Array, "*head width embed"],
    W_O: Float[Array, "*head group out width"],
    b_V: Float[Array, "*head width"] | None = None,
) -> Float[Array, "*head width width"]:
    """`vo_charge` when a group of heads shares one value projection: the outputs add up."""
    return np.asarray(_gram(W_V, b_V) - _gram(np.swapaxes(W_O, -1, -2), None).sum(-3))


def relu_charge(
    W_in: Float[Array, "hidden embed"],
    W_out: Float[Array, "out hidden"],
    b_in: Float[Array, " hidden"] | None = None,
    *,
    degree: float = 1.0,
) -> Float[Array, " hidden"]:
    r"""In/out balance $\|w_{in}\|^2 + b_{in}^2 - p\,\|w_{out}\|^2$ of each unit of a ReLU MLP.

    Holds for every activation with $\phi(\alpha s) = \alpha^p\phi(s)$, $\alpha > 0$: ReLU and leaky
    ReLU ($p = 1$), squared ReLU ($p = 2$). In a gated MLP it holds for the up and down matrices,
    whatever the gate. GELU and SiLU have no such scale and no charge.
    """
    bias = np.zeros(len(W_in)) if b_in is None else b_in
    return np.asarray((W_in**2).sum(1) + bias**2 - degree * (W_out**2).sum(0))


class RotaryCharge(NamedTuple):
    """The part of a head's QK charge that rotary encodings conserve."""

    pairs: Float[Array, "*head pairs"]
    """One number per rotated pair of coordinates."""
    rest: Float[Array, "*head rest rest"]
    """The whole block of the coordinates that are not rotated."""


def rotary_charge(
    charge: Float[Array, "*head width width"],
    rotated: int | None = None,
    *,
    pairing: Literal["half", "interleaved"] = "half",
) -> RotaryCharge:
    r"""What rotary encodings leave of `qk_charge`: the trace of each $2\times2$ block, and no more.

    Scores are $q^\top R\,k$ with a rotation $R$ for each distance, so $W_Q \to AW_Q$, $W_K \to
    A^{-\top}W_K$ is a symmetry only if $A$ commutes with every $R$. For distinct frequencies that
    means a scaled rotation $\alpha I + \beta J$ in each pair of coordinates. The scale gives
    $\|W_Q\|^2 - \|W_K\|^2$ of the pair, the trace. The rotation turns queries and keys alike; its
    generator $J$ is antisymmetric, and an antisymmetric generator yields no conserved function
    of a gradient flow. Off-diagonal blocks and the traceless parts move.

    Args:
        charge: `qk_charge` of each head, with both biases: $b_K$ matters here.
        rotated: How many leading coordinates are rotated; all unless given.
        pairing: Coordinate `i` goes with `i + rotated / 2` (`half`, as in Llama and GPT-NeoX) or
            `2 i` with `2 i + 1` (`interleaved`, as in GPT-J).
    """
    width = charge.shape[-1]
    rotated = width if rotated is None else rotated
    if rotated % 2 or not 0 <= rotated <= width:
        raise JomaError(f"rotated must be even and at most the head width {width}; got {rotated}.")
    diagonal = np.diagonal(charge, axis1=-2, axis2=-1)[..., :rotated]
    if pairing == "half":
        pairs = diagonal[..., : rotated // 2] + diagonal[..., rotated // 2 :]
    else:
        pairs = diagonal[..., 0::2] + diagonal[..., 1::2]
    return RotaryCharge(pairs, charge[..., rotated:, rotated:])


def after_steps(
    initial: Float[Array, "*shape"],
    gradient_charge: Float[Array, "steps *shape"],
    learning_rates: Float[Array, " steps"],
    *,
    decay: float = 0.0,
) -> Float[Array, "times *shape"]:
    r"""The charge before and after each SGD step, exactly.

    $C_{n+1} = (1-\eta\lambda)^2C_n + \eta^2 C(G_n)$, where $C(G)$ is the same function of the
    gradients in place of the weights, biases included. Terms linear in $\eta$ cancel, so
    over a fixed horizon the drift is $O(\eta)$.
    Heavy ball multiplies it by `drift.momentum_factor`; Adam conserves nothing.

    Args:
        initial: Charge at the start.
        gradient_charge: Charge of the gradients of each step, full batch or mini-batch.
        learning_rates: One per step.
        decay: Weight decay of *all* the parameters in the charge. Biases are often exempt; then
            the law holds for models without them.
    """
    path = [initial]
    for rate, kick in zip(learning_rates.tolist(), gradient_charge, strict=True):
        path.append((1 - rate * decay) ** 2 * path[-1] + rate**2 * kick)
    return np.stack(path)


def after_time(
    initial: Float[Array, "*shape"], times: Float[Array, " times"], *, decay: float = 0.0
) -> Float[Array, "times *shape"]:
    r"""The charge under gradient flow with weight decay: $C(0)e^{-2\lambda t}$."""
    return np.asarray(np.multiply.outer(np.exp(-2 * decay * times), initial))


def _gram(weight: Array, bias: Array | None) -> Array:
    gram = weight @ np.swapaxes(weight, -1, -2)
    if bias is not None:
        gram = gram + bias[..., :, None] * bias[..., None, :]
    return np.asarray(gram)

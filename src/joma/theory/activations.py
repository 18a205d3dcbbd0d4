r"""The point-wise functions of Eqn. 1 and their slopes: $\phi$ of nodes, $\sigma$ of attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import expit, ndtr

from joma._core.errors import UnknownNameError
from joma._core.typing import ScalarFunction

PAPER: dict[str, str] = {}  # parts of Eqn. 1, whose home is `joma.theory.flow`

T = TypeVar("T")


@dataclass(frozen=True)
class Activation:
    r"""A node's $\phi$ and $\phi'$."""

    name: str
    phi: ScalarFunction
    slope: ScalarFunction
    kinked: bool = False
    """Whether `slope` jumps; adaptive integrators stall there."""


@dataclass(frozen=True)
class Attention:
    r"""An attention function $\sigma$, its $\sigma'$, and what Theorem 1 makes of it."""

    name: str
    sigma: ScalarFunction
    slope: ScalarFunction
    psi: ScalarFunction | None = None
    r"""$\Psi$ with $\Psi' = \sigma/\sigma'$, if there is a closed form."""
    normalised: bool = False
    """Divided by its sum over the tokens of each sample, as softmax is."""


def leaky(slope: float = 0.1) -> Activation:
    """Leaky ReLU with the given slope on the left."""
    return Activation(
        "leaky",
        lambda a: np.where(a > 0, a, slope * a),
        lambda a: np.where(a > 0, 1.0, slope),
        True,
    )


def power(p: float) -> Attention:
    r"""$\sigma(s) = s^p$, for which $\Psi(s) = s^2/(2p)$; `power(1.0)` is linear attention."""
    return Attention(
        f"power {p:g}", lambda s: s**p, lambda s: p * s ** (p - 1), lambda s: s**2 / (2 * p)
    )


ACTIVATIONS: Mapping[str, Activation] = {
    a.name: a
    for a in (
        Activation("linear", lambda a: a, np.ones_like),
        Activation("relu", lambda a: np.maximum(a, 0.0), lambda a: np.where(a > 0, 1.0, 0.0), True),
        leaky(),
        Activation(
            "gelu",
            lambda a: a * ndtr(a),
            lambda a: ndtr(a) + a * np.exp(-(a**2) / 2) / np.sqrt(2 * np.pi),
        ),
        Activation("silu", lambda a: a * expit(a), lambda a: expit(a) * (1 + a * (1 - expit(a)))),
        Activation("tanh", np.tanh, lambda a: 1 - np.tanh(a) ** 2),
        Activation("square", np.square, lambda a: 2 * a),
    )
}

ATTENTIONS: Mapping[str, Attention] = {
    a.name: a
    for a in (
        Attention("linear", lambda s: s, np.ones_like, lambda s: s**2 / 2),
        Attention("exp", np.exp, np.exp, lambda s: s),
        Attention("softmax", np.exp, np.exp, normalised=True),
        Attention("sigmoid", expit, lambda s: expit(s) * expit(-s), lambda s: s + np.exp(s)),
    )
}


def activation(choice: str | Activation) -> Activation:
    """The activation of that name; an `Activation` of your own passes through."""
    return choice if isinstance(choice, Activation) else _named(ACTIVATIONS, choice, "activation")


def attention(choice: str | Attention) -> Attention:
    """The attention function of that name; an `Attention` of your own passes through."""
    return choice if isinstance(choice, Attention) else _named(ATTENTIONS, choice, "attention")


def _named(table: Mapping[str, T], name: str, kind: str) -> T:
    if name not in table:
        raise UnknownNameError(f"No {kind} named {name!r}. Available: {', '.join(table)}.")
    return table[name]

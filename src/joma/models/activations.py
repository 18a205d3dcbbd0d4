r"""Activations $\phi$ of hidden nodes, under the names that `joma.theory.activations` uses."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from joma._core.errors import UnknownNameError

Activation: TypeAlias = Callable[[Tensor], Tensor]
"""An element-wise function of a tensor."""


def linear(a: Tensor) -> Tensor:
    """No activation at all: the linear MLP of Theorem 2."""
    return a


def leaky(a: Tensor) -> Tensor:
    """Leaky ReLU with slope 0.1 on the left."""
    return F.leaky_relu(a, 0.1)


ACTIVATIONS: Mapping[str, Activation] = {
    "linear": linear,
    "relu": F.relu,
    "leaky": leaky,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "square": torch.square,
}


def activation(choice: str | Activation) -> Activation:
    """The activation of that name; a function of your own passes through."""
    if not isinstance(choice, str):
        return choice
    if choice not in ACTIVATIONS:
        raise UnknownNameError(
            f"No activation named {choice!r}. Available: {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[choice]

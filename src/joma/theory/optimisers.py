"""Update rules of discrete training, each a pure function of gradient and memory.

They work on one array at a time and in the ascent sign of the paper: a rule turns the
gradient into a direction, and the caller adds learning rate times direction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from joma._core.typing import Array

PAPER: dict[str, str] = {}  # the paper trains by SGD and does not number it

Memory: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True)
class Rule:
    """How a gradient becomes a direction, given what was remembered."""

    name: str
    start: Callable[[Array], Memory]
    """Memory before the first step, for a parameter of this shape."""
    turn: Callable[[Array, Memory], tuple[Array, Memory]]
    """Gradient and memory to direction and new memory."""


def sgd() -> Rule:
    """Plain (stochastic) gradient steps."""
    return Rule("sgd", lambda _: (), lambda gradient, memory: (gradient, memory))


def heavy_ball(beta: float = 0.9) -> Rule:
    """Momentum as in PyTorch: the effective learning rate is `rate / (1 - beta)`."""

    def turn(gradient: Array, memory: Memory) -> tuple[Array, Memory]:
        direction = beta * memory[0] + gradient
        return direction, (direction,)

    return Rule("heavy ball", lambda parameter: (np.zeros_like(parameter),), turn)


def adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Rule:
    """Adam with bias correction: every coordinate gets a learning rate of its own."""

    def start(parameter: Array) -> Memory:
        return np.zeros_like(parameter), np.zeros_like(parameter), np.zeros(1)

    def turn(gradient: Array, memory: Memory) -> tuple[Array, Memory]:
        first, second, count = memory
        count = count + 1
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        scale = np.sqrt(second / (1 - beta2**count)) + epsilon
        return first / (1 - beta1**count) / scale, (first, second, count)

    return Rule("adam", start, turn)


def sign() -> Rule:
    """Steps of equal size in every coordinate (signSGD)."""
    return Rule("sign", lambda _: (), lambda gradient, memory: (np.sign(gradient), memory))

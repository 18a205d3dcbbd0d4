"""The training runs that Figures 2 and 3 look at: softmax attention, linear MLP, cross-entropy."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from joma._core.typing import Array
from joma.data.tokens import TokenClasses, frequencies
from joma.theory import flow

Data = Literal["smooth", "random"]
KINDS: tuple[Data, ...] = ("smooth", "random")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the authors' script; the paper prints none of them."""

    iterations: int = 2000
    every: int = 10
    """Iterations between records."""
    classes: int = 20
    banded: int = 10
    loose: int = 10
    learning_rate: float = 0.1
    temperature: float = 0.5
    init: float = 0.01
    """Standard deviation of `W` and `z` at the start."""


class Run(NamedTuple):
    """A trained layer, at every iteration."""

    layer: flow.Layer
    steps: Int[Array, " points"]
    """Iterations to record."""
    z: Float[Array, "times tokens"]
    v: Float[Array, "times tokens hidden"]

    @property
    def mean_attention(self) -> Float[Array, "times tokens"]:
        r"""$\bar b(t)$."""
        return np.stack([flow.mean_scores(self.layer, z) for z in self.z])


def train(config: Config, kind: Data, seed: int, *, kappa: float = 1.0) -> Run:
    """Data from the seed, then full-batch SGD. With `kappa` 0 attention stays as it started."""
    classes = config.classes
    data = TokenClasses(classes, config.banded, config.loose, kind)
    x = frequencies(data, seed).numpy()
    layer = flow.Layer(
        x=x,
        signal=flow.cross_entropy(np.arange(classes), classes),
        attention="softmax",
        temperature=config.temperature,
    )
    rng = np.random.default_rng(seed)
    W0 = config.init * rng.standard_normal((data.tokens + 1, classes))
    z0 = config.init * rng.standard_normal(data.tokens)
    rates = np.full(config.iterations, config.learning_rate)
    path = flow.descend(layer, W0, z0, rates, kappa=kappa)
    steps = np.arange(0, config.iterations + 1, config.every)
    return Run(layer, steps, path.z, layer.context(path.W))

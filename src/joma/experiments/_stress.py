r"""Ways to train the layer of Eqn. 1 that keep, bend or break Theorem 1, each with its law.

One row per condition. All share the data of Figure 2, cross-entropy on the nodes and an
initialisation of N(0, .01^2). What is measured is $\|z - \hat z\|/\|z - z_0\|$, with $\hat z$ read
off the weights; a law says what $z - \hat z$ should be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from joma._core.typing import Array
from joma.theory import flow
from joma.theory.flow import Layer, Trajectory
from joma.theory.ode import State

TOKENS = HIDDEN = 20  # Figure 2, authors' script: M_C = 10 + 10, one node per class
HEAD = 8  # rows of W_Q and W_K
SHARED = 3  # the context token that is also the query, in one condition


class Trained(NamedTuple):
    """A layer and every state it went through."""

    layer: Layer
    path: Trajectory

    def until(self, time: float) -> "Trained":
        """The same run, cut off at `time`."""
        path, here = self.path, self.path.times <= time + 1e-9  # times are sums of many rates
        cut = replace(path, times=path.times[here], W=path.W[here], z=path.z[here])
        if path.U_C.ndim == 3:  # learned
            cut = replace(cut, U_C=path.U_C[here], u_q=path.u_q[here])
        return self._replace(path=cut)


class Reading(NamedTuple):
    """What Theorem 1 speaks of, at the end, at the start, and as read off the weights."""

    value: Float[Array, " tokens"]
    start: Float[Array, " tokens"]
    predicted: Float[Array, " tokens"]


Train: TypeAlias = Callable[[int], Trained]
"""Seed to a trained layer; seed 0 is the draw of the reference drifts."""
Read: TypeAlias = Callable[[Trained], Reading]
Law: TypeAlias = Callable[[Trained], Array]
"""What training should have added to the invariant by the end, per token."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One reading of one condition."""

    arm: str
    reference: Mapping[float, float]
    """Relative drift that was measured before, by the horizon at which it was; may be `nan`."""
    read: Read
    law: Law | None = None
    skip: int | None = None
    """A token that is left out."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One way to train, and what is read off the result."""

    train: Train
    rows: tuple[Row, ...]


# --- the layer -----------------------------------------------------------------------------------


def figure2(seed: int, **options: Any) -> tuple[Layer, Array, Array]:
    """Layer, `W` and `z` before training; ReLU and exp attention with A = .1 unless given."""
    x = np.random.default_rng(seed).random((TOKENS, HIDDEN)) / 2
    token, label = np.mgrid[: TOKENS // 2, :HIDDEN]
    x[: TOKENS // 2] = np.exp(-((token - label * TOKENS / 2 / HIDDEN) ** 2) / 30)
    settings: dict[str, Any] = {"activation": "relu", "normaliser": 0.1} | options
    signal = flow.cross_entropy(np.arange(HIDDEN), HIDDEN)
    layer = Layer(x=(x / x.sum(0)).T, signal=signal, **settings)
    rng = np.random.default_rng(7 + seed)
    W = rng.standard_normal((TOKENS + 1, HIDDEN)) / 100
    return layer, W, rng.standard_normal(TOKENS) / 100


def plain(
    rate: float, steps: int, *, z_start: float = 0.0, batch: int | None = None, **options: Any
) -> Train:
    """By `flow.descend`; options are those of the layer, or of `descend`."""
    names = {"rule", "kappa", "decay_w", "decay_z", "learn_embeddings"}
    training = {name: value for name, value in options.items() if name in names}
    layered = {name: value for name, value in options.items() if name not in names}

    def train(seed: int) -> Trained:
        layer, W, z = figure2(seed, **layered)
        rng = None if batch is None else np.random.default_rng(seed)
        rates = np.full(steps, rate)
        path = flow.descend(layer, W, z + z_start, rates, batch=batch, rng=rng, **training)
        return Trained(layer, path)

    return train


def scheduled(rate: float, steps: int) -> Train:
    """With a cosine schedule of that mean."""

    def train(seed: int) -> Trained:
        layer, W, z = figure2(seed)
        rates = 2 * rate * np.cos(np.pi * np.arange(steps) / steps / 2) ** 2
        return Trained(layer, flow.descend(layer, W, z, rates))

    return train


def random_embeddings(rate: float, steps: int, embed: int) -> Train:
    """With random unit vectors in `embed` dimensions for tokens and query.

    Only their overlaps matter, so the run takes place in the 21 dimensions that they span.
    """

    def train(seed: int) -> Trained:
        layer, W, z = figure2(seed)
        U = np.random.default_rng(3 + seed).standard_normal((embed, TOKENS + 1))
        U = np.linalg.qr(U / np.linalg.norm(U, axis=0)).R
        layer = replace(layer, U_C=U[:, :TOKENS], u_q=U[:, TOKENS])
        return Trained(layer, flow.descend(layer, U @ W, z, np.full(steps, rate)))

    return train


def shared_query(rate: float, steps: int) -> Train:
    """With a query whose embedding is that of a context token."""
    basis = np.eye(TOKENS + 1)
    return plain(rate, steps, U_C=basis[:, :TOKENS], u_q=basis[:, SHARED])


# --- what `flow.descend` has no option for -------------------------------------------------------


def clipped(rate: float, steps: int, largest: float) -> Train:
    """With the gradient's global norm cut at `largest`."""

    def train(seed: int) -> Trained:
        layer, W, z = figure2(seed)

        def field(state: State) -> State:
            pulls = flow.gradient(layer, state)
            norm = np.sqrt(sum((pull**2).sum() for pull in pulls.values()))
            return {name: pull * min(1.0, largest / norm) for name, pull in pulls.items()}

        return _march(layer, {"W": W, "z": z}, field, rate, steps)

    return train


def single_precision(rate: float, steps: int) -> Train:
    """With parameters and updates in float32."""

    def train(seed: int) -> Trained:
        layer, W, z = figure2(seed)
        start = {"W": W.astype(np.float32), "z": z.astype(np.float32)}

        def field(state: State) -> State:
            pulls = flow.gradient(layer, {n: v.astype(np.float64) for n, v in state.items()})
            return {name: pull.astype(np.float32) for name, pull in pulls.items()}

        return _march(layer, start, field, np.float32(rate), steps)

    return train


def upper_layer(rate: float, steps: int) -> Train:
    """With a second layer, trained too, between the nodes and the loss: the signal changes."""

    def train(seed: int) -> Trained:
        layer, W, z = figure2(seed, activation="gelu")
        top = np.random.default_rng(9 + seed).standard_normal((HIDDEN, HIDDEN)) / 5

        def field(state: State) -> State:
            h = flow.forward(layer, state["W"], state["z"]).h
            error = np.eye(HIDDEN) - softmax(h @ state["top"], axis=1)
            seen = replace(layer, signal=flow.stationary(error @ state["top"].T))
            W_dot, z_dot = flow.velocity(seen, state["W"], state["z"])
            return {"W": W_dot, "z": z_dot, "top": h.T @ error / len(h)}

        return _march(layer, {"W": 3 * W, "z": z, "top": top}, field, rate, steps)

    return train


def projected(rate: float, steps: int, scale: float, draw: int) -> Train:
    r"""With $z = U_C^\top W_K^\top W_Q u_q$ through trained $W_K$ and $W_Q$."""

    def train(seed: int) -> Trained:
        layer, W, _ = figure2(seed)
        U_C, u_q = layer.embeddings[0], layer.embeddings[1][:, 0]
        drawn = np.random.default_rng(5 + seed).standard_normal((draw + 1, 2, HEAD, TOKENS + 1))
        W_K, W_Q = scale * drawn[draw]

        def field(state: State) -> State:
            W_K, W_Q = state["W_K"], state["W_Q"]
            W_dot, z_dot = flow.velocity(layer, state["W"], U_C.T @ (W_K.T @ (W_Q @ u_q)))
            pull = U_C @ z_dot
            return {"W": W_dot, "W_K": np.outer(W_Q @ u_q, pull), "W_Q": np.outer(W_K @ pull, u_q)}

        def logits(state: State) -> Array:
            return np.asarray(U_C.T @ (state["W_K"].T @ (state["W_Q"] @ u_q)))

        return _march(layer, {"W": W, "W_K": W_K, "W_Q": W_Q}, field, rate, steps, logits)

    return train


def two_queries(rate: float, steps: int) -> Train:
    """With two queries that share `W`, one for the even classes and one for the odd."""

    def train(seed: int) -> Trained:
        layer, W, z = figure2(seed, query=np.arange(HIDDEN) % 2)
        W = np.concatenate([W, np.zeros((1, HIDDEN))])
        return Trained(layer, flow.descend(layer, W, np.stack([z, -z]), np.full(steps, rate)))

    return train


def _march(
    layer: Layer,
    state: State,
    field: Callable[[State], State],
    rate: float | np.float32,
    steps: int,
    logits: Callable[[State], Array] = lambda state: state["z"],
) -> Trained:
    """Plain steps along `field`, which may know more parameters than the layer has."""
    path = [(state["W"], logits(state))]
    for _ in range(steps):
        pulls = field(state)
        state = {name: state[name] + rate * pull for name, pull in pulls.items()}
        path.append((state["W"], logits(state)))
    W, z = (np.stack(part).astype(np.float64) for part in zip(*path, strict=True))
    times = float(rate) * np.arange(steps + 1)
    U_C, u_q = layer.embeddings
    return Trained(layer, Trajectory(times=times, W=W, z=z, U_C=U_C, u_q=u_q))

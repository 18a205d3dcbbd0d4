r"""The layer of Eqn. 1 and its full training dynamics, Eqn. 2: the judge of every closed form here.

Any attention, any activation, any backpropagated signal, one query or several. Nothing is
approximated: the expectation runs over the samples that are given.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from joma._core.errors import JomaError
from joma._core.typing import Array, Form
from joma.theory import activations, ode
from joma.theory.activations import Activation, Attention
from joma.theory.ode import State
from joma.theory.optimisers import Rule, sgd

PAPER = {
    "Eqn. 1": "forward",
    "Eqn. 2": "velocity",
    "Eqn. 60": "weights_from",
}

Signal: TypeAlias = Callable[[Array], Array]
r"""Node outputs $h$ to backpropagated $g$, both `[samples, hidden]`; $g$ points uphill."""


def cross_entropy(labels: Int[Array, " samples"], hidden: int) -> Signal:
    """Signal of a cross-entropy loss put directly on the nodes, one node per class (Section 2)."""
    target = np.eye(hidden)[labels]
    return lambda h: target - softmax(h, axis=1)


def stationary(g: Float[Array, "samples hidden"]) -> Signal:
    """A signal that does not change while the layer trains (Assumption 1, layer-wise training)."""
    return lambda _: g


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Everything in Eqn. 1 that is not trained."""

    x: Float[Array, "samples tokens"]
    """Token frequencies of each sample."""
    signal: Signal
    attention: str | Attention = "exp"
    activation: str | Activation = "linear"
    temperature: float = 1.0
    normaliser: float = 1.0
    """$A$ of linear and exp attention; softmax has its own."""
    residual: bool = True
    unit_norm: bool = False
    """LayerNorm without mean and gain: $f$ is divided by its length."""
    U_C: Float[Array, "embed tokens"] | None = None
    """Context embeddings; one-hot, with one more row per query, unless given."""
    u_q: Float[Array, "embed *queries"] | None = None
    """Query embedding, one column per query if there are several."""
    query: Int[Array, " samples"] | None = None
    """Which query each sample ends with, if there are several: its row of `z`."""
    weights: Float[Array, " samples"] | None = None
    """Probability of each sample; equal unless given. A mini-batch is a choice of weights."""

    def __post_init__(self) -> None:
        if (self.U_C is None) != (self.u_q is None):
            raise JomaError("U_C and u_q come together: give both, or neither for one-hot.")

    @cached_property
    def embeddings(self) -> tuple[Float[Array, "embed tokens"], Float[Array, "embed queries"]]:
        """`U_C`, and `u_q` as columns, one per query."""
        if self.U_C is not None and self.u_q is not None:
            return self.U_C, self.u_q.reshape(len(self.U_C), -1)
        tokens = self.x.shape[1]
        basis = np.eye(tokens + (1 if self.query is None else int(self.query.max()) + 1))
        return basis[:, :tokens], basis[:, tokens:]

    @cached_property
    def shares(self) -> Float[Array, " samples"]:
        samples = len(self.x)
        return np.full(samples, 1 / samples) if self.weights is None else self.weights

    @cached_property
    def rows(self) -> Int[Array, " samples"]:
        return np.zeros(len(self.x), dtype=int) if self.query is None else self.query

    def context(
        self, W: Float[Array, "*times embed hidden"]
    ) -> Float[Array, "*times tokens hidden"]:
        r"""$V = U_C^\top W$, whose columns are the $v_k$."""
        return self.embeddings[0].T @ W


class Forward(NamedTuple):
    """What one pass through the layer computes."""

    b: Float[Array, "samples tokens"]
    """Attention scores."""
    f: Float[Array, "samples embed"]
    """Input of the nodes."""
    length: Float[Array, "samples 1"]
    """Length of `f` before LayerNorm; 1 if there is none."""
    a: Float[Array, "samples hidden"]
    """Pre-activations."""
    h: Float[Array, "samples hidden"]


def forward(
    layer: Layer, W: Float[Array, "embed hidden"], z: Float[Array, "*queries tokens"]
) -> Forward:
    r"""Eqn. 1: $h_k = \phi(w_k^\top f)$, $f = U_C b + u_q$, $b = \sigma(z/T) \circ x / A$."""
    U_C, u_q = layer.embeddings
    b = scores(layer, z)
    f = b @ U_C.T
    if layer.residual:
        f = f + u_q.T[layer.rows]
    length = np.ones((len(b), 1))
    if layer.unit_norm:
        length = np.linalg.norm(f, axis=1, keepdims=True)
        f = f / length
    a = f @ W
    return Forward(b, f, length, a, activations.activation(layer.activation).phi(a))


def scores(layer: Layer, z: Float[Array, "*queries tokens"]) -> Float[Array, "samples tokens"]:
    r"""Attention scores $b$ of every sample."""
    sigma = activations.attention(layer.attention)
    s = _per_sample(layer, z) / layer.temperature
    if sigma.normalised:
        b = sigma.sigma(s - s.max(1, keepdims=True)) * layer.x
        b = b / b.sum(1, keepdims=True)
    else:
        b = sigma.sigma(s) * layer.x / layer.normaliser
    return np.asarray(b)


def mean_scores(layer: Layer, z: Float[Array, "*queries tokens"]) -> Float[Array, " tokens"]:
    r"""$\bar b = \mathbb E[b]$, which Theorem 1 takes to be constant for softmax attention."""
    return layer.shares @ scores(layer, z)


def velocity(
    layer: Layer, W: Float[Array, "embed hidden"], z: Float[Array, "*queries tokens"]
) -> tuple[Float[Array, "embed hidden"], Float[Array, "*queries tokens"]]:
    r"""Right-hand side of Eqn. 2: $\dot w_k = \mathbb E[g_k h_k' f]$ and $\dot z$.

    With several queries the expectation runs over all samples, so $\dot z_m$ carries the
    probability of its query.
    """
    rates = gradient(layer, {"W": W, "z": z})
    return rates["W"], rates["z"]


def gradient(layer: Layer, state: State) -> State:
    """Ascent direction of every parameter in `state`; embeddings are trained if they are in it."""
    if "U_C" in state:
        layer = replace(layer, U_C=state["U_C"], u_q=state["u_q"])
    W, z = state["W"], state["z"]
    U_C, u_q = layer.embeddings
    seen = forward(layer, W, z)
    b, f, length = seen.b, seen.f, seen.length
    node = node_pull(layer, seen)
    g_f = node @ W.T
    if layer.unit_norm:
        g_f = (g_f - f * (f * g_f).sum(1, keepdims=True)) / length
    rates = {"W": f.T @ node, "z": _logit_gradient(layer, z, b, g_f @ U_C)}
    if "U_C" in state:
        bias = np.zeros_like(u_q.T)
        if layer.residual:
            np.add.at(bias, layer.rows, g_f)
        rates |= {"U_C": g_f.T @ b, "u_q": bias.T.reshape(state["u_q"].shape)}
    return rates


def node_pull(layer: Layer, seen: Forward) -> Float[Array, "samples hidden"]:
    r"""$g_k h_k'$ times the weight of the sample, so that a sum over samples is a mean."""
    slope = activations.activation(layer.activation).slope(seen.a)
    return np.asarray(layer.shares[:, None] * layer.signal(seen.h) * slope)


def _logit_gradient(layer: Layer, z: Array, b: Array, pull: Array) -> Array:
    r"""Sum over samples of $(\partial b/\partial z)^\top$ `pull`, per query."""
    sigma = activations.attention(layer.attention)
    if sigma.normalised:
        per_sample = b * (pull - (b * pull).sum(1, keepdims=True)) / layer.temperature
    else:
        scale = layer.normaliser * layer.temperature
        s = _per_sample(layer, z) / layer.temperature
        per_sample = sigma.slope(s) * layer.x * pull / scale
    if z.ndim == 1:
        return np.asarray(per_sample.sum(0))
    result = np.zeros_like(z)
    np.add.at(result, layer.rows, per_sample)
    return result


def _per_sample(layer: Layer, z: Array) -> Array:
    if (z.ndim == 1) != (layer.query is None):
        raise JomaError(
            f"z must have one row per query when the layer has several, and be flat when it has "
            f"one; got shape {z.shape} with query {'absent' if layer.query is None else 'given'}."
        )
    return z[None] if z.ndim == 1 else z[layer.rows]


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Parameters along a flow, or at every step of a discrete run."""

    times: Float[Array, " times"]
    """ODE time; for a discrete run the sum of learning rates so far."""
    W: Float[Array, "times embed hidden"]
    z: Float[Array, "times *queries tokens"]
    U_C: Float[Array, "*moving embed tokens"]
    """Context embeddings; with a time axis if they were learned."""
    u_q: Float[Array, "*moving embed queries"]

    @property
    def v(self) -> Float[Array, "times tokens hidden"]:
        r"""$V(t) = U_C^\top W$."""
        return np.swapaxes(self.U_C, -1, -2) @ self.W


def integrate(
    layer: Layer,
    W0: Float[Array, "embed hidden"],
    z0: Float[Array, "*queries tokens"],
    times: Float[Array, " times"],
    *,
    kappa: float = 1.0,
    decay_w: float = 0.0,
    decay_z: float = 0.0,
    learn_embeddings: bool = False,
    rtol: float = 1e-11,
    steps: int = 4000,
) -> Trajectory:
    r"""The flow of Eqn. 2 from `(W0, z0)` at time 0, read off at `times`.

    DOP853 for smooth activations. For kinked ones (ReLU) fixed RK4 steps: there an adaptive
    high-order solver shrinks its step at every kink and may never finish.

    Args:
        layer: What is not trained.
        W0: Lower MLP weights at time 0.
        z0: Attention logits at time 0. Linear attention needs `z0 != 0` (E16).
        times: Increasing, from 0 or later.
        kappa: Learning rate of `z` over that of `W`.
        decay_w: Weight decay of `W`, multiplied by its learning rate as optimisers do.
        decay_z: Weight decay of `z`, so that `z` decays at rate `kappa * decay_z`.
        learn_embeddings: Train `U_C` and `u_q` too.
        rtol: Relative tolerance of DOP853.
        steps: Number of RK4 steps, for kinked activations.

    Raises:
        JomaError: If the flow does not reach the last time. Exp attention blows up in finite
            time; ask for earlier times.
    """
    start = _start(layer, W0, z0, learn_embeddings)

    def field(state: State) -> State:
        return _rates(layer, state, kappa, decay_w, decay_z)

    kinked = activations.activation(layer.activation).kinked
    path = ode.rk4(field, start, times, steps) if kinked else ode.dop853(field, start, times, rtol)
    return _trajectory(layer, times, path)


def descend(
    layer: Layer,
    W0: Float[Array, "embed hidden"],
    z0: Float[Array, "*queries tokens"],
    learning_rates: Float[Array, " steps"],
    *,
    rule: Rule | None = None,
    kappa: float = 1.0,
    decay_w: float = 0.0,
    decay_z: float = 0.0,
    batch: int | None = None,
    rng: np.random.Generator | None = None,
    learn_embeddings: bool = False,
) -> Trajectory:
    """Discrete training, one step per entry of `learning_rates`; every state is kept.

    Weight decay is added to the gradient (L2), before `rule` (plain SGD unless given) turns it
    into a step. With `batch`, each step sees that many samples drawn with replacement by `rng`.
    """
    if (batch is None) != (rng is None):
        raise JomaError("Mini-batches need both batch and rng; give both, or neither.")
    rule = sgd() if rule is None else rule
    state = _start(layer, W0, z0, learn_embeddings)
    memory = {name: rule.start(value) for name, value in state.items()}
    path = [state]
    for rate in learning_rates.tolist():
        seen = layer
        if batch is not None and rng is not None:
            counts = rng.multinomial(batch, layer.shares)
            seen = replace(layer, weights=counts / batch)
        pulls = _rates(seen, state, 1.0, decay_w, decay_z)
        moved = {}
        for name, pull in pulls.items():
            direction, memory[name] = rule.turn(pull, memory[name])
            moved[name] = state[name] + rate * (kappa if name == "z" else 1.0) * direction
        state = moved
        path.append(state)
    times = np.concatenate([[0.0], np.cumsum(learning_rates)])
    return _trajectory(layer, times, {n: np.stack([s[n] for s in path]) for n in state})


def midpoint_step(
    layer: Layer,
    W: Float[Array, "embed hidden"],
    z: Float[Array, "*queries tokens"],
    step: float,
    *,
    kappa: float = 1.0,
) -> tuple[Float[Array, "embed hidden"], Float[Array, "*queries tokens"]]:
    """One implicit midpoint step of Eqn. 2: keeps every quadratic invariant, at any step size."""
    new_W, new_z = W, z
    for _ in range(200):
        with np.errstate(over="ignore", invalid="ignore"):  # diverging; reported below
            rate_W, rate_z = velocity(layer, (W + new_W) / 2, (z + new_z) / 2)
        old_W, old_z = new_W, new_z
        new_W, new_z = W + step * rate_W, z + step * kappa * rate_z
        moved = max(np.abs(new_W - old_W).max(), np.abs(new_z - old_z).max())
        if moved <= 1e-15 * (1 + np.abs(new_z).max()):
            return new_W, new_z
    raise JomaError(
        f"The implicit midpoint step of size {step:g} did not converge in 200 iterations "
        f"(last change {moved:.1e}); take a smaller step."
    )


def weights_from(
    layer: Layer,
    W0: Float[Array, "embed hidden"],
    shift: Float[Array, "tokens hidden"],
    xi: Float[Array, " hidden"],
    *,
    form: Form = "corrected",
) -> Float[Array, "embed hidden"]:
    r"""Eqn. 60: $w_k = w_k(0) + U_C (v_k - v_k(0)) + u_q \xi_k$, $\xi_k = \int\mathbb E[g_kh_k']$.

    The query embedding acts as the node's bias. The paragraph on pattern superposition prints it
    with a minus sign (E32); `form="printed"` computes that.
    """
    U_C, u_q = layer.embeddings
    sign = 1.0 if form == "corrected" else -1.0
    return np.asarray(W0 + U_C @ shift + sign * u_q[:, :1] * xi)


def _start(layer: Layer, W0: Array, z0: Array, learn_embeddings: bool) -> State:
    state = {"W": W0, "z": z0}
    if learn_embeddings:
        state["U_C"], state["u_q"] = layer.embeddings
    return state


def _rates(layer: Layer, state: State, kappa: float, decay_w: float, decay_z: float) -> State:
    rates = gradient(layer, state)
    rates["W"] = rates["W"] - decay_w * state["W"]
    rates["z"] = kappa * (rates["z"] - decay_z * state["z"])
    return rates


def _trajectory(layer: Layer, times: Array, path: State) -> Trajectory:
    U_C, u_q = layer.embeddings
    return Trajectory(
        times=times,
        W=path["W"],
        z=path["z"],
        U_C=path.get("U_C", U_C),
        u_q=path.get("u_q", u_q),
    )

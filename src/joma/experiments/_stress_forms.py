"""What is read off a layer of the stress table, and the laws of what training adds to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from joma._core.typing import Array
from joma.experiments._stress import TOKENS, Law, Read, Reading, Trained
from joma.theory import drift, flow, invariants
from joma.theory.flow import Layer

# --- what is read off ----------------------------------------------------------------------------


def exp_form(kappa: float = 1.0) -> Read:
    r"""$z$ against $c + \frac{\kappa}{2}\sum_k v_k^2$."""

    def read(trained: Trained) -> Reading:
        z, v = trained.path.z[[0, -1]], trained.path.v[[0, -1]]
        c = invariants.conserved(z[0], v[0], kappa=kappa)
        return Reading(z[1], z[0], invariants.predicted_logits(v[1], c, kappa=kappa))

    return read


def linear_form(decay: float = 0.0) -> Read:
    r"""$z^2$ against $ce^{-2\lambda t} + \sum_k v_k^2$."""

    def read(trained: Trained) -> Reading:
        z, v = trained.path.z[[0, -1]], trained.path.v[[0, -1]]
        c = invariants.conserved(z[0], v[0], attention="linear")
        left = c * np.exp(-2 * decay * trained.path.times[-1])
        return Reading(z[1] ** 2, z[0] ** 2, left + (v[1] ** 2).sum(1))

    return read


def decayed_form(decay_w: float) -> Read:
    r"""$z$ against $ce^{-2\lambda_w t} + \frac12\sum_k v_k^2$, for $\lambda_z = 2\lambda_w$."""

    def read(trained: Trained) -> Reading:
        z, v = trained.path.z[[0, -1]], trained.path.v[[0, -1]]
        left = invariants.conserved(z[0], v[0]) * np.exp(-2 * decay_w * trained.path.times[-1])
        return Reading(z[1], z[0], invariants.predicted_logits(v[1], left))

    return read


def embedding_form(trained: Trained) -> Reading:
    r"""$z$ against $c + \frac12\|u_l\|^2$, for learned embeddings."""
    z, U_C = trained.path.z[[0, -1]], trained.path.U_C[[0, -1]]
    c = invariants.embedding_charge(z, U_C)
    return Reading(z[1], z[0], z[1] - (c[1] - c[0]))


def first_query_form(trained: Trained) -> Reading:
    """The theorem applied to one of several queries."""
    return exp_form()(trained._replace(path=replace(trained.path, z=trained.path.z[:, 0])))


def all_queries_form(trained: Trained) -> Reading:
    """The theorem applied to the sum over queries."""
    return exp_form()(trained._replace(path=replace(trained.path, z=trained.path.z.sum(1))))


def softmax_form(trained: Trained) -> Reading:
    r"""$z$ against Eqn. 18, with $\bar b$ from the start."""
    layer, path = trained
    z, v = path.z[[0, -1]], path.v[[0, -1]]
    options: dict[str, Any] = {
        "attention": "softmax",
        "temperature": layer.temperature,
        "mean_attention": flow.mean_scores(layer, z[0]),
    }
    c = invariants.conserved(z[0], v[0], **options)
    return Reading(z[1], z[0], invariants.predicted_logits(v[1], c, **options))


def path_form(trained: Trained) -> Reading:
    r"""$z$ against Eqn. 17 integrated along the path, with $\bar b$ as it moves."""
    layer, path = trained
    mean = np.stack([flow.mean_scores(layer, z) for z in path.z])
    predicted = invariants.path_integral_logits(
        path.v, mean, path.z[0], temperature=layer.temperature
    )
    return Reading(path.z[-1], path.z[0], predicted[-1])


# --- laws ----------------------------------------------------------------------------------------


def steps_law(kappa: float = 1.0, factor: float = 1.0) -> Law:
    """Minus half the quadratic variation of v, times `factor` for momentum. Exact for SGD."""
    return lambda trained: np.asarray(factor * drift.sgd_defect(trained.path.v, kappa=kappa)[-1])


def unscaled_law(kappa: float) -> Law:
    """For an invariant that forgets that `z` learns `kappa` times as fast. Exact for SGD."""

    def law(trained: Trained) -> Array:
        energy = (trained.path.v[[0, -1]] ** 2).sum(-1)
        return np.asarray((kappa - 1) / 2 * (energy[1] - energy[0]) + steps_law(kappa)(trained))

    return law


def decay_law(decay_w: float, decay_z: float) -> Law:
    """`drift.decayed`, which knows nothing of finite steps."""

    def law(trained: Trained) -> Array:
        path = trained.path
        c = invariants.conserved(path.z[0], path.v[0])
        end = drift.decayed(path.times, c, path.v, decay_w=decay_w, decay_z=decay_z)[-1]
        return np.asarray(end - c)

    return law


def rate_law(defect: Callable[[Layer, Array, Array], Array]) -> Law:
    """A rate of change summed over the steps, beside their quadratic variation. Exact for SGD."""

    def law(trained: Trained) -> Array:
        layer, path = trained
        states = zip(np.diff(path.times), path.W[:-1], path.z[:-1], strict=True)
        total = sum(dt * defect(layer, W, z) for dt, W, z in states)
        return np.asarray(total + steps_law()(trained))

    return law


def linear_law(trained: Trained) -> Array:
    """`drift.linear_attention_step`, summed. Exact for SGD."""
    layer, path = trained
    total = np.zeros(TOKENS)
    for dt, W, z in zip(np.diff(path.times).tolist(), path.W[:-1], path.z[:-1], strict=True):
        pull = flow.node_pull(layer, flow.forward(layer, W, z))
        s = layer.x.T @ pull / (layer.normaliser * layer.temperature)
        total += drift.linear_attention_step(z, layer.context(W), s, dt)
    return total

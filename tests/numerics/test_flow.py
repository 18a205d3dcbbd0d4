"""Eqn. 1 and 2: our right-hand side is the gradient, and the flow does what the paper derives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import simpson

from joma._core.errors import JomaError, UnknownNameError
from joma.theory import flow, optimisers
from joma.theory.activations import ACTIVATIONS, ATTENTIONS

# Same formula, same float64, other order of operations.
EXACT = 1e-12
# DOP853 runs at rtol 1e-11; a few hundred steps of it stay within this.
FLOW = 1e-9

TORCH_PHI = {
    "linear": lambda a: a,
    "relu": torch.relu,
    "leaky": lambda a: torch.nn.functional.leaky_relu(a, 0.1),
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "square": torch.square,
}
TORCH_SIGMA = {"linear": lambda s: s, "exp": torch.exp, "sigmoid": torch.sigmoid}


def problem(rng, *, samples=7, tokens=5, hidden=3, embed=9, queries=None, **options):
    """A layer with random orthonormal embeddings and unequal samples, and a state."""
    basis = np.linalg.qr(rng.standard_normal((embed, embed)))[0]
    columns = 1 if queries is None else queries
    weights = rng.random(samples)
    layer = flow.Layer(
        x=rng.random((samples, tokens)),
        signal=flow.cross_entropy(rng.integers(0, hidden, samples), hidden),
        normaliser=1.7,
        U_C=basis[:, :tokens],
        u_q=basis[:, tokens : tokens + columns],
        query=None if queries is None else rng.integers(0, queries, samples),
        weights=weights / weights.sum(),
        **options,
    )
    W = rng.standard_normal((embed, hidden))
    z = 1 + 0.3 * rng.standard_normal(tokens if queries is None else (queries, tokens))
    return layer, W, z


def autograd(layer, parameters):
    """Gradient of E[sum_k g_k h_k] with g held fixed, by torch."""
    p = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    x, s = torch.tensor(layer.x), p["z"] / layer.temperature
    s = s[layer.rows] if s.ndim == 2 else s
    if layer.attention == "softmax":
        b = torch.exp(s) * x
        b = b / b.sum(1, keepdim=True)
    else:
        b = TORCH_SIGMA[layer.attention](s) * x / layer.normaliser
    f = b @ p["U_C"].T + (p["u_q"].T[layer.rows] if layer.residual else 0)
    if layer.unit_norm:
        f = f / f.norm(dim=1, keepdim=True)
    h = TORCH_PHI[layer.activation](f @ p["W"])
    g = torch.tensor(layer.signal(h.detach().numpy()))
    (torch.tensor(layer.shares)[:, None] * g * h).sum().backward()
    return {n: torch.zeros_like(v) if v.grad is None else v.grad for n, v in p.items()}


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_eqn2_is_the_gradient_of_the_objective(rng, attention, activation, residual):
    for temperature in (1.0, 0.5):
        layer, W, z = problem(
            rng,
            attention=attention,
            activation=activation,
            residual=residual,
            temperature=temperature,
        )
        U_C, u_q = layer.embeddings
        state = {"W": W, "z": z, "U_C": U_C, "u_q": u_q}
        ours, theirs = flow.gradient(layer, state), autograd(layer, state)
        for name in state:
            np.testing.assert_allclose(ours[name], theirs[name], atol=EXACT, err_msg=name)


@pytest.mark.parametrize("attention", ["linear", "exp", "softmax"])
def test_eqn2_is_the_gradient_with_layer_norm_and_several_queries(rng, attention):
    layer, W, z = problem(rng, queries=3, attention=attention, activation="gelu", unit_norm=True)
    U_C, u_q = layer.embeddings
    state = {"W": W, "z": z, "U_C": U_C, "u_q": u_q}
    ours, theirs = flow.gradient(layer, state), autograd(layer, state)
    for name in state:
        np.testing.assert_allclose(ours[name], theirs[name], atol=EXACT, err_msg=name)


def test_cross_entropy_is_the_gradient_of_the_log_likelihood(rng):
    h = rng.standard_normal((6, 4))
    labels = rng.integers(0, 4, 6)
    t = torch.tensor(h, requires_grad=True)
    torch.nn.functional.cross_entropy(t, torch.tensor(labels), reduction="sum").backward()
    np.testing.assert_allclose(flow.cross_entropy(labels, 4)(h), -t.grad, atol=EXACT)


def test_query_embedding_collects_the_bias_of_each_node(rng):
    """Eqn. 60; the minus sign of the superposition paragraph (E32) does not fit."""
    layer, W, z = problem(rng, activation="silu")
    times = np.linspace(0.0, 1.5, 301)
    run = flow.integrate(layer, W, z, times)
    points = zip(run.W, run.z, strict=True)
    pulls = [flow.node_pull(layer, flow.forward(layer, W, z)).sum(0) for W, z in points]
    xi = simpson(np.stack(pulls), x=times, axis=0)
    shift = run.v[-1] - run.v[0]
    np.testing.assert_allclose(flow.weights_from(layer, W, shift, xi), run.W[-1], atol=FLOW)
    printed = flow.weights_from(layer, W, shift, xi, form="printed")
    assert np.abs(printed - run.W[-1]).max() > 0.1


def test_fixed_steps_and_adaptive_steps_agree_on_a_smooth_flow(rng):
    layer, W, z = problem(rng, activation="gelu")
    times = np.array([0.0, 0.1, 0.4, 1.0])
    adaptive = flow.integrate(layer, W, z, times)
    kinked = replace(
        layer, activation=replace(ACTIVATIONS["gelu"], name="as if kinked", kinked=True)
    )
    fixed = flow.integrate(kinked, W, z, times, steps=400)
    np.testing.assert_allclose(fixed.W, adaptive.W, atol=FLOW)
    np.testing.assert_allclose(fixed.z, adaptive.z, atol=FLOW)
    np.testing.assert_array_equal(fixed.W[0], W)


def test_small_sgd_steps_approach_the_flow(rng):
    layer, W, z = problem(rng, activation="tanh")
    end = flow.integrate(layer, W, z, np.array([0.5]), kappa=2.0, decay_w=0.1, decay_z=0.3).W[-1]
    errors = [
        np.abs(
            flow.descend(layer, W, z, np.full(n, 0.5 / n), kappa=2.0, decay_w=0.1, decay_z=0.3).W[
                -1
            ]
            - end
        ).max()
        for n in (50, 100)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.05)


def test_mini_batch_steps_are_unbiased(rng):
    """A mini-batch gradient is right on average: within 3.5 standard errors of 1500 draws."""
    layer, W, z = problem(rng, activation="relu")
    draws = np.stack(
        [flow.descend(layer, W, z, np.ones(1), batch=2, rng=rng).z[1] - z for _ in range(1500)]
    )
    error = draws.std(0) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(0) - flow.velocity(layer, W, z)[1]) < 3.5 * error)


def test_rules_match_torch_optimisers(rng):
    layer, W, z = problem(rng, activation="gelu")
    pairs = {
        "heavy ball": (optimisers.heavy_ball(0.8), lambda p: torch.optim.SGD(p, 0.05, 0.8)),
        "adam": (optimisers.adam(), lambda p: torch.optim.Adam(p, 0.05)),
    }
    for rule, build in pairs.values():
        ours = flow.descend(layer, W, z, np.full(20, 0.05), rule=rule)
        p = [torch.tensor(W, requires_grad=True), torch.tensor(z, requires_grad=True)]
        optimiser = build(p)
        for _ in range(20):
            rates = flow.velocity(layer, p[0].detach().numpy(), p[1].detach().numpy())
            for parameter, rate in zip(p, rates, strict=True):
                parameter.grad = torch.tensor(-rate)
            optimiser.step()
        np.testing.assert_allclose(ours.W[-1], p[0].detach(), atol=EXACT)
        np.testing.assert_allclose(ours.z[-1], p[1].detach(), atol=EXACT)


def test_sign_rule_moves_every_coordinate_equally(rng):
    layer, W, z = problem(rng, activation="gelu")
    run = flow.descend(layer, W, z, np.array([0.01]), rule=optimisers.sign())
    np.testing.assert_allclose(np.abs(run.z[1] - z), 0.01, atol=EXACT)


def test_zero_start_of_linear_attention_never_moves(rng):
    """E16: Theorem 1 offers it as the case c = 0; it is a fixed point."""
    layer, W, z = problem(rng, attention="linear")
    W_dot, z_dot = flow.velocity(layer, np.zeros_like(W), np.zeros_like(z))
    assert np.abs(layer.context(W_dot)).max() < EXACT
    assert np.all(z_dot == 0)


def test_blow_up_is_reported(rng):
    layer, W, z = problem(rng)
    layer = replace(layer, signal=flow.stationary(np.ones((7, 3))))
    for activation in ("linear", "relu"):
        with pytest.raises(JomaError, match="ask for earlier times"):
            flow.integrate(replace(layer, activation=activation), W, z, np.array([100.0]), steps=99)


def test_rejects_what_does_not_fit_together(rng):
    layer, W, z = problem(rng)
    with pytest.raises(JomaError, match="one row per query"):
        flow.velocity(layer, W, np.stack([z, z]))
    with pytest.raises(JomaError, match="come together"):
        replace(layer, u_q=None)
    with pytest.raises(JomaError, match="both batch and rng"):
        flow.descend(layer, W, z, np.ones(1), batch=2)
    with pytest.raises(UnknownNameError, match="Available: linear, exp, softmax"):
        flow.velocity(replace(layer, attention="expo"), W, z)

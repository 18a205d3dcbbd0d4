"""Theorem 1 away from gradient flow: the laws of what training adds, and what breaks it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joma._core.errors import JomaError
from joma.theory import charges, drift, flow, invariants, optimisers
from numerics.layers import drifted, figure2, random_problem, relative_drift

# Identities that hold step by step, in float64, with numbers of order one.
EXACT = 1e-12
# DOP853 at rtol 1e-11 over a few time units.
FLOW = 1e-9

examples = settings(deadline=None, derandomize=True)


# --- discrete training -----------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    samples=st.integers(1, 9),
    tokens=st.integers(1, 8),
    hidden=st.integers(1, 6),
    activation=st.sampled_from(["linear", "relu", "gelu", "tanh", "leaky"]),
    residual=st.booleans(),
    batch=st.none() | st.integers(1, 4),
    kappa=st.sampled_from([1.0, 0.3, 2.5]),
    temperature=st.sampled_from([1.0, 0.7]),
)
@settings(examples, max_examples=60)
def test_sgd_loses_exactly_half_the_quadratic_variation(
    seed, samples, tokens, hidden, activation, residual, batch, kappa, temperature
):
    layer, W, z = random_problem(
        seed,
        samples,
        tokens,
        hidden,
        activation=activation,
        residual=residual,
        temperature=temperature,
    )
    rng = np.random.default_rng(seed)
    schedule = 0.1 * rng.random(15)
    run = flow.descend(layer, W, z, schedule, kappa=kappa, batch=batch, rng=rng if batch else None)
    options = {"kappa": kappa, "temperature": temperature}
    c = invariants.conserved(run.z, run.v, **options)
    defect = drift.sgd_defect(run.v, **options)
    assert np.abs(c - c[0] - defect).max() < EXACT
    assert np.all(defect <= 0)


def test_the_identity_survives_a_signal_that_changes_and_a_trained_upper_layer(rng):
    """Assumption 1 is not needed: g comes from a second layer that trains at the same time."""
    layer, W, z = random_problem(5, 8, 5, 4, activation="gelu")
    top, target, path = rng.standard_normal((4, 3)), np.eye(3)[rng.integers(0, 3, 8)], []
    for _ in range(40):
        h = flow.forward(layer, W, z).h
        error = target - np.exp(h @ top) / np.exp(h @ top).sum(1, keepdims=True)
        layer = replace(layer, signal=flow.stationary(error @ top.T))
        W_dot, z_dot = flow.velocity(layer, W, z)
        path.append((layer.context(W), z))
        W, z, top = W + 0.1 * W_dot, z + 0.1 * z_dot, top + 0.1 * h.T @ error / len(h)
    v, z = (np.stack(part) for part in zip(*path, strict=True))
    c = invariants.conserved(z, v)
    assert np.abs(c - c[0] - drift.sgd_defect(v)).max() < EXACT


@given(seed=st.integers(0, 2**32 - 1), activation=st.sampled_from(["gelu", "silu", "tanh"]))
@settings(examples, max_examples=8)
def test_halving_the_step_halves_the_drift(seed, activation):
    layer, W, z = random_problem(seed, 8, 5, 4, activation=activation)
    drifts = [drifted(flow.descend(layer, W, z, np.full(n, 1.0 / n))) for n in (100, 200)]
    assert 1.95 < drifts[0] / drifts[1] < 2.05


@given(seed=st.integers(0, 2**32 - 1), beta=st.floats(0.3, 0.9))
@settings(examples, max_examples=6)
def test_momentum_multiplies_the_drift(seed, beta):
    layer, W, z = random_problem(seed, 8, 5, 4, activation="gelu")
    plain = flow.descend(layer, W, z, np.full(1000, 0.002))
    heavy = flow.descend(
        layer, W, z, np.full(1000, 0.002 * (1 - beta)), rule=optimisers.heavy_ball(beta)
    )
    assert drifted(heavy) / drifted(plain) == pytest.approx(drift.momentum_factor(beta), rel=0.03)


def test_linear_attention_step_has_its_own_exact_identity():
    layer, W, z = random_problem(
        3, 8, 5, 4, attention="linear", activation="gelu", temperature=0.8, normaliser=1.3
    )
    v = layer.context(W)
    seen = flow.forward(layer, W, z)
    s = layer.x.T @ flow.node_pull(layer, seen) / (1.3 * 0.8)
    run = flow.descend(layer, W, z, np.array([0.1]), kappa=2.0)
    c = invariants.conserved(run.z, run.v, attention="linear", kappa=2.0)
    expected = drift.linear_attention_step(z, v, s, 0.1, kappa=2.0)
    np.testing.assert_allclose(c[1] - c[0], expected, atol=EXACT)


def test_balanced_update_keeps_the_invariant_at_a_huge_step():
    layer, W, z = figure2("relu")
    start = invariants.conserved(z, layer.context(W))
    for _ in range(100):
        after = W + 0.4 * flow.velocity(layer, W, z)[0]
        z = drift.balanced_logits(z, layer.context(W), layer.context(after))
        W = after
    assert np.abs(invariants.conserved(z, layer.context(W)) - start).max() < EXACT


def test_implicit_midpoint_keeps_the_invariant_at_a_large_step():
    layer, W, z = figure2("gelu")
    start = invariants.conserved(z, layer.context(W), kappa=2.0)
    for _ in range(50):
        W, z = flow.midpoint_step(layer, W, z, 0.2, kappa=2.0)
    assert np.abs(invariants.conserved(z, layer.context(W), kappa=2.0) - start).max() < EXACT
    with pytest.raises(JomaError, match="take a smaller step"):
        flow.midpoint_step(layer, W, z, 1e3)


# --- weight decay and learned embeddings -----------------------------------------------------


@pytest.mark.parametrize(("decay_w", "decay_z"), [(0.1, 0.1), (0.2, 0.0), (0.0, 0.2), (0.1, 0.2)])
@pytest.mark.parametrize("attention", ["exp", "linear"])
def test_weight_decay_moves_the_invariant_by_its_law(attention, decay_w, decay_z):
    layer, W, z = random_problem(
        4, 8, 5, 4, attention=attention, activation="gelu", temperature=0.8
    )
    times = np.linspace(0.0, 3.0, 241)
    options = {"attention": attention, "kappa": 1.5, "temperature": 0.8}
    run = flow.integrate(layer, W, z, times, kappa=1.5, decay_w=decay_w, decay_z=decay_z)
    c = invariants.conserved(run.z, run.v, **options)
    law = drift.decayed(times, c[0], run.v, decay_w=decay_w, decay_z=decay_z, **options)
    np.testing.assert_allclose(c, law, atol=1e-8)  # the spline through v(t) limits this
    assert np.abs(c - c[0]).max() > 0.01


def test_logits_that_decay_twice_as_fast_leave_a_pure_exponential():
    layer, W, z = random_problem(4, 8, 5, 4, activation="gelu")
    times = np.array([0.0, 1.0, 3.0])
    run = flow.integrate(layer, W, z, times, decay_w=0.1, decay_z=0.2)
    c = invariants.conserved(run.z, run.v)
    np.testing.assert_allclose(c, np.outer(np.exp(-0.2 * times), c[0]), atol=FLOW)


def test_learned_embedding_charge_drifts_with_the_step():
    layer, W, z = figure2("relu")
    runs = [
        flow.descend(layer, W, z, np.full(n, 40.0 / n), learn_embeddings=True) for n in (400, 800)
    ]
    errors = []
    for run in runs:
        charge = invariants.embedding_charge(run.z[[0, -1]], run.U_C[[0, -1]])
        moved = np.linalg.norm(run.z[-1] - run.z[0])
        errors.append(np.linalg.norm(charge[1] - charge[0]) / moved)
    assert errors[1] == pytest.approx(5.4e-4, rel=0.05)  # eta = .05
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.05)
    assert relative_drift(runs[1]) == pytest.approx(2.6, rel=0.1)


# --- what breaks it ----------------------------------------------------------------------------


def test_changes_that_keep_the_symmetry_do_not_break_it():
    """Activation, residual: the same drift of 1.4e-3 at rate .05."""
    for activation, options in (("gelu", {}), ("relu", {"residual": False}), ("tanh", {})):
        layer, W, z = figure2(activation, **options)
        assert 1e-3 < relative_drift(flow.descend(layer, W, z, np.full(800, 0.05))) < 2e-3


def test_adam_and_sign_steps_break_it_at_any_learning_rate():
    layer, W, z = figure2("relu")
    for rule, rate, steps in (
        (optimisers.adam(), 0.01, 200),
        (optimisers.adam(), 0.003, 700),
        (optimisers.sign(), 0.004, 500),
    ):
        assert relative_drift(flow.descend(layer, W, z, np.full(steps, rate), rule=rule)) > 0.3


def test_layer_norm_breaks_it_at_a_known_rate():
    layer, W, z = figure2("relu", unit_norm=True)
    assert relative_drift(flow.descend(layer, W, z, np.full(400, 0.1))) > 1
    W_dot, z_dot = flow.velocity(layer, 100 * W, z)
    work = (layer.context(W_dot) * layer.context(100 * W)).sum(1)
    np.testing.assert_allclose(z_dot - work, drift.layer_norm_defect(layer, 100 * W, z), atol=EXACT)


def test_overlapping_embeddings_break_it_in_proportion():
    rng = np.random.default_rng(3)
    layer, W, z = figure2("gelu")
    ratios = []
    for embed in (200, 1000):
        U = rng.standard_normal((embed, 21))
        U /= np.linalg.norm(U, axis=0)
        overlapping = replace(layer, U_C=U[:, :20], u_q=U[:, 20])
        W_dot, z_dot = flow.velocity(overlapping, U @ W, z)
        v, v_dot = overlapping.context(U @ W), overlapping.context(W_dot)
        defect = drift.overlap_defect(overlapping, U @ W, z)
        np.testing.assert_allclose(z_dot - (v_dot * v).sum(1), defect, atol=EXACT)
        overlap = np.sqrt(((U.T @ U - np.eye(21)) ** 2).sum() / (21 * 20))
        run = flow.descend(overlapping, U @ W, z, np.full(200, 0.2))
        ratios.append(relative_drift(run) / overlap)
    assert all(1.2 < ratio < 2.0 for ratio in ratios), "drift over rms overlap, 1.4 to 1.8"


def test_logits_through_trained_keys_and_queries_trade_it_for_another_charge():
    """With z = U_C^T W_K^T W_Q u_q Theorem 1 fails, and the QK charge holds instead."""
    layer, W, _ = figure2("gelu")
    U_C, u_q = layer.embeddings[0], layer.embeddings[1][:, 0]
    W_K, W_Q = 0.5 * np.random.default_rng(5).standard_normal((2, 8, 21))
    drifts = []
    for steps in (400, 800):
        (w, K, Q), rate, path = (W, W_K, W_Q), 4.0 / steps, []
        for _ in range(steps):
            z = U_C.T @ (K.T @ (Q @ u_q))
            path.append((layer.context(w), z))
            w_dot, z_dot = flow.velocity(layer, w, z)
            K_dot, Q_dot = np.outer(Q @ u_q, U_C @ z_dot), np.outer(K @ (U_C @ z_dot), u_q)
            w, K, Q = w + rate * w_dot, K + rate * K_dot, Q + rate * Q_dot
        v, z = (np.stack(part) for part in zip(*path, strict=True))
        c = invariants.conserved(z, v)
        assert np.linalg.norm(c[-1] - c[0]) / np.linalg.norm(z[-1] - z[0]) > 0.3
        drifts.append(np.abs(charges.qk_charge(Q, K) - charges.qk_charge(W_Q, W_K)).max())
    assert drifts[0] / drifts[1] == pytest.approx(2, abs=0.1)


def test_a_query_that_is_also_a_context_token_breaks_it_there_only():
    layer, W, z = figure2("relu")
    basis = np.eye(21)
    shared = replace(layer, U_C=basis[:, :20], u_q=basis[:, 3])
    run = flow.descend(shared, W, z, np.full(400, 0.1))
    c = invariants.conserved(run.z[[0, -1]], run.v[[0, -1]])
    defect = c[1] - c[0] - drift.sgd_defect(run.v)[-1]
    others = np.arange(20) != 3
    assert np.abs(defect[others]).max() < EXACT < 1e-4 < abs(defect[3])


def test_rejects_attention_the_laws_do_not_cover():
    still = np.zeros((2, 3, 1))
    with pytest.raises(JomaError, match="got 'softmax'"):
        drift.decayed(
            np.zeros(2), np.zeros(3), still, decay_w=0.0, decay_z=0.0, attention="softmax"
        )
    layer, W, z = figure2(attention="softmax")
    with pytest.raises(JomaError, match="exp attention; got 'softmax'"):
        drift.overlap_defect(layer, W, z)

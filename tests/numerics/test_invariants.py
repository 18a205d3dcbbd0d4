"""Theorem 1: what is conserved under gradient flow, and what softmax makes of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joma._core.errors import JomaError
from joma.theory import activations, flow, invariants
from joma.theory.activations import Attention
from numerics.layers import figure2, random_problem, relative_drift

# Identities in float64, with numbers of order one.
EXACT = 1e-12
# DOP853 at rtol 1e-11 over a few time units.
FLOW = 1e-9

SMOOTH = ["linear", "gelu", "silu", "tanh", "square"]
examples = settings(deadline=None, derandomize=True)


# --- gradient flow ---------------------------------------------------------------------------


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("attention", ["linear", "exp", "sigmoid"])
def test_flow_conserves_theorem_1(attention, activation, residual):
    layer, W, z = random_problem(
        1, 8, 5, 4, attention=attention, activation=activation, residual=residual, temperature=0.8
    )
    run = flow.integrate(layer, W, z, np.array([0.0, 0.5, 1.0]), kappa=1.5)
    c = invariants.conserved(run.z, run.v, attention=attention, kappa=1.5, temperature=0.8)
    assert np.abs(run.z[-1] - z).max() > 0.002, "nothing happened"
    assert np.abs(c - c[0]).max() < FLOW


def test_flow_conserves_theorem_1_through_kinks():
    """Fixed steps lose the order of the method at every kink: 1e-7 is what 400 of them give."""
    layer, W, z = random_problem(1, 8, 5, 4, activation="relu")
    run = flow.integrate(layer, W, z, np.array([0.0, 1.0]), steps=400)
    c = invariants.conserved(run.z, run.v)
    assert np.abs(c[1] - c[0]).max() < 1e-7


@given(seed=st.integers(0, 2**32 - 1), kappa=st.floats(0.1, 3.0), temperature=st.floats(0.5, 2.0))
@settings(examples, max_examples=10)
def test_learning_rate_ratio_is_the_slope(seed, kappa, temperature):
    layer, W, z = random_problem(seed, 8, 5, 4, activation="gelu", temperature=temperature)
    run = flow.integrate(layer, W, z, np.array([0.5]), kappa=kappa)
    energy = ((run.v[-1] ** 2).sum(-1) - (layer.context(W) ** 2).sum(-1)) / (2 * temperature)
    assert (run.z[-1] - z) @ energy / (energy @ energy) == pytest.approx(kappa, abs=FLOW)


def test_printed_claim_for_any_learning_rates_needs_the_ratio():
    """E24: without the factor kappa the invariant is off by most of what happened."""
    layer, W, z = random_problem(1, 8, 5, 4, activation="gelu")
    run = flow.integrate(layer, W, z, np.array([0.0, 2.0]), kappa=3.0)
    assert relative_drift(run, kappa=3.0) < FLOW
    assert relative_drift(run) > 0.5


@pytest.mark.parametrize("attention", ["linear", "exp"])
def test_queries_that_share_weights_conserve_only_their_sum(attention):
    """E25."""
    layer, W, z = random_problem(2, 12, 6, 4, queries=3, attention=attention, activation="silu")
    run = flow.integrate(layer, W, z, np.array([0.0, 2.0]))
    together = invariants.conserved_over_queries(run.z, run.v, attention=attention)
    assert np.abs(together[1] - together[0]).max() < FLOW
    for m in range(3):
        alone = invariants.conserved(run.z[:, m], run.v, attention=attention)
        assert np.abs(alone[1] - alone[0]).max() > 0.01


def test_any_unnormalised_attention_has_its_psi():
    layer, W, z = random_problem(1, 8, 5, 4, activation="gelu")
    softplus = Attention("softplus", lambda s: np.logaddexp(0, s), lambda s: 1 / (1 + np.exp(-s)))
    for attention in (softplus, activations.power(3.0), activations.power(1.0)):
        run = flow.integrate(replace(layer, attention=attention), W, z, np.array([0.0, 1.0]))
        assert relative_drift(run, attention=attention) < FLOW


@pytest.mark.parametrize("attention", ["linear", "exp", "sigmoid"])
def test_psi_has_the_slope_it_is_defined_by(attention):
    s, h = np.linspace(0.2, 2.0, 7), 1e-5
    sigma = activations.attention(attention)
    slope = (invariants.psi(s + h, attention=sigma) - invariants.psi(s - h, attention=sigma)) / (
        2 * h
    )
    np.testing.assert_allclose(slope, sigma.sigma(s) / sigma.slope(s), rtol=1e-8)
    by_quadrature = invariants.psi(s, attention=replace(sigma, psi=None))
    closed = invariants.psi(s, attention=sigma) - invariants.psi(np.zeros(1), attention=sigma)
    np.testing.assert_allclose(by_quadrature, closed, rtol=EXACT)


def test_the_invariant_is_the_charge_of_a_rescaling(rng):
    """Exp attention sees e^{z_l} v_kl only: moving a factor between them changes no output."""
    layer, W, z = random_problem(0, 8, 5, 4, activation="gelu", temperature=0.7)
    s = rng.standard_normal(5)
    moved = W.copy()
    moved[:5] *= np.exp(-s / 0.7)[:, None]
    np.testing.assert_allclose(
        flow.forward(layer, moved, z + s).h, flow.forward(layer, W, z).h, atol=EXACT
    )


def test_predicted_logits_invert_the_invariant():
    for attention in ("linear", "exp", "softmax"):
        layer, W, z = random_problem(1, 8, 5, 4, attention=attention, temperature=0.8)
        options = {"attention": attention, "kappa": 1.5, "temperature": 0.8}
        if attention == "softmax":
            options["mean_attention"] = flow.mean_scores(layer, z)
        v = layer.context(W)
        c = invariants.conserved(z, v, **options)
        np.testing.assert_allclose(invariants.predicted_logits(v, c, **options), z, atol=EXACT)


@pytest.mark.parametrize("attention", ["exp", "linear"])
def test_learned_embeddings_conserve_the_balance_of_logit_and_embedding(attention):
    layer, W, z = random_problem(6, 8, 5, 4, attention=attention, activation="gelu")
    run = flow.integrate(layer, W, z, np.array([0.0, 2.0]), learn_embeddings=True)
    charge = invariants.embedding_charge(run.z, run.U_C, attention=attention)
    balance = invariants.weight_balance(run.W, run.U_C, run.u_q)
    assert np.abs(charge[1] - charge[0]).max() < FLOW
    assert np.abs(balance[1] - balance[0]).max() < FLOW
    assert relative_drift(run, attention=attention) > 0.1, "Theorem 1 itself is broken"


# --- softmax -----------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    activation=st.sampled_from(["relu", "gelu", "square"]),
    unit_norm=st.booleans(),
    rate=st.floats(0.01, 1.0),
)
@settings(examples, max_examples=20)
def test_softmax_conserves_the_sum_of_logits(seed, activation, unit_norm, rate):
    layer, W, z = random_problem(
        seed, 8, 5, 4, attention="softmax", activation=activation, unit_norm=unit_norm
    )
    run = flow.descend(layer, W, z, np.full(10, rate))
    assert np.abs(invariants.logit_sum(run.z) - invariants.logit_sum(z)).max() < EXACT


def test_eqn_17_holds_for_one_sentence_and_the_printed_invariant_is_rejected(rng):
    """E1: when all samples share x, the assumption is exact and only one sign can be right."""
    layer, W, _ = random_problem(
        1, 8, 5, 4, attention="softmax", activation="relu", temperature=0.5
    )
    layer = replace(layer, x=np.repeat(layer.x[:1], 8, axis=0))
    z = 0.3 * rng.standard_normal(5)
    W_dot, z_dot = flow.velocity(layer, W, z)
    v, v_dot = layer.context(W), layer.context(W_dot)
    for form, holds in (("corrected", True), ("printed", False)):
        rate = invariants.softmax_velocity(
            v, v_dot, flow.mean_scores(layer, z), temperature=0.5, form=form
        )
        error = np.linalg.norm(rate - z_dot) / np.linalg.norm(z_dot)
        assert error < EXACT if holds else error > 0.5


def test_softmax_velocity_is_the_slope_of_predicted_logits(rng):
    v, v_dot, h = rng.standard_normal((5, 4)), rng.standard_normal((5, 4)), 1e-6
    b = np.full(5, 0.2)
    for form in ("corrected", "printed"):
        ends = [
            invariants.predicted_logits(
                v + s * v_dot, attention="softmax", mean_attention=b, form=form
            )
            for s in (h, -h)
        ]
        rate = invariants.softmax_velocity(v, v_dot, b, form=form)
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), rate, atol=1e-6)


def test_path_integral_is_exact_when_all_samples_share_their_tokens():
    layer, W, z = random_problem(1, 8, 5, 4, attention="softmax", activation="gelu")
    layer = replace(layer, x=np.repeat(layer.x[:1], 8, axis=0))
    errors = []
    for points in (101, 201):
        run = flow.integrate(layer, W, z, np.linspace(0.0, 8.0, points), kappa=2.0)
        mean = np.stack([flow.mean_scores(layer, z) for z in run.z])
        errors.append(
            np.abs(invariants.path_integral_logits(run.v, mean, z, kappa=2.0) - run.z).max()
        )
    assert np.abs(run.z[-1] - z).max() > 0.05
    assert errors[1] < 1e-5 and errors[0] / errors[1] == pytest.approx(4, abs=0.1)


def test_summed_assumption_is_not_enough():
    """E15: with g_2 = -g_1 the printed hypothesis reads 0 = 0, and Eqn. 17 is still wrong."""
    rng = np.random.default_rng(1)
    g = rng.standard_normal((10, 1))
    layer = flow.Layer(
        x=rng.random((10, 5)), signal=flow.stationary(np.hstack([g, -g])), attention="softmax"
    )
    W, z = rng.standard_normal((6, 2)), 0.3 * rng.standard_normal(5)
    W_dot, z_dot = flow.velocity(layer, W, z)
    b = flow.scores(layer, z)
    summed = layer.signal(b).sum(1)
    assert np.abs(np.einsum("i,il,ij->lj", summed, b, b)).max() < EXACT
    rate = invariants.softmax_velocity(layer.context(W), layer.context(W_dot), b.mean(0))
    assert np.linalg.norm(rate - z_dot) / np.linalg.norm(z_dot) > 0.05


@given(seed=st.integers(0, 2**32 - 1))
@settings(examples, max_examples=20)
def test_mean_attention_stands_still_only_if_the_logits_do(seed):
    """The hypothesis of Theorem 1's softmax case: constant mean attention means constant z.

    dz/dt lies in the range of E[diag b - bb^T], which is also the Jacobian of the mean scores;
    the matrix is symmetric, so it cannot map a nonzero dz/dt to zero.
    """
    layer, W, z = random_problem(seed, 6, 5, 3, attention="softmax", activation="gelu")
    z_dot = flow.velocity(layer, W, z)[1]
    b = flow.scores(layer, z)
    jacobian = np.diag(b.mean(0)) - b.T @ b / len(b)
    floor = np.linalg.eigvalsh(jacobian)[1]  # the smallest beside the shift of all logits
    assert floor > 1e-4
    assert np.linalg.norm(jacobian @ z_dot) >= 0.99 * floor * np.linalg.norm(z_dot)


def test_correlation_hides_an_amplitude_that_is_nine_times_too_large():
    """E15, Figure 2: 2000 steps at rate .1, T = .5. The path integral repairs most of it."""
    layer, W, z = figure2("linear", attention="softmax", temperature=0.5)
    run = flow.descend(layer, W, z, np.full(2000, 0.1))
    b = np.stack([flow.mean_scores(layer, z) for z in run.z])
    options = {"attention": "softmax", "temperature": 0.5, "mean_attention": b[0]}
    c = invariants.conserved(z, run.v[0], **options)
    frozen = invariants.agreement(
        run.z[-1], z, invariants.predicted_logits(run.v[-1], c, **options)
    )
    path = invariants.path_integral_logits(run.v, b, z, temperature=0.5)
    moving = invariants.agreement(run.z[-1], z, path[-1])
    assert frozen.correlation > 0.99
    assert frozen.slope == pytest.approx(0.113, abs=0.01) and frozen.relative_error > 7
    assert moving.slope == pytest.approx(0.90, abs=0.03) and moving.relative_error < 0.4
    assert np.abs(b[-1] - b[0]).sum() > 1.5, "of at most 2: the mean attention is not constant"


def test_agreement_of_nothing_with_something_is_undefined():
    still = invariants.agreement(np.zeros(3), np.zeros(3), np.arange(3.0))
    assert np.isnan(still.correlation) and np.isnan(still.relative_error) and still.slope == 0


def test_rejects_what_it_cannot_answer():
    v = np.ones((3, 2))
    with pytest.raises(JomaError, match="mean_attention"):
        invariants.conserved(np.zeros(3), v, attention="softmax")
    with pytest.raises(JomaError, match="got 'sigmoid'"):
        invariants.predicted_logits(v, attention="sigmoid")
    with pytest.raises(JomaError, match="logit_sum only"):
        invariants.psi(np.zeros(3), attention="softmax")
    assert np.isnan(invariants.predicted_logits(v, np.full(3, -9.0), attention="linear")).all()

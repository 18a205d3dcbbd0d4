"""Lemmas 1, 2, 3 and 5 against samples, integrals and difference quotients; the print fails."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from joma.theory import clusters
from joma.theory.clusters import RELU, Step
from joma.theory.projections import (
    NORMAL,
    GaussianMixture,
    Laplace,
    Logistic,
    StudentT,
    Uniform,
)

HEAVY = GaussianMixture((0.9, 0.1), (0.3, 3.0))
STEPS = {"relu": RELU, "leaky": Step(0.1), "linear": Step(1.0), "abs": Step(-1.0)}
RHO = np.array([-2.5, -0.7, 0.0, 0.4, 3.0])
CENTRE, XI = np.array([0.5, -0.4, 0.3, 0.2]), 0.3
UNIT = np.array([0.8, 0.0, -0.6, 0.0])
SAMPLES = 300_000
# Difference quotients with a stride of 1e-4 of smooth functions: h² plus rounding over h.
STRIDE, QUOTIENT = 1e-4, 1e-7
# Quadrature to 1e-12 against closed forms.
QUADRATURE = 1e-10
# Closed forms against each other: rounding only.
EXACT = 1e-12


@pytest.fixture(params=STEPS)
def step(request):
    return STEPS[request.param]


@pytest.fixture(params=["normal", "heavy"])
def projection(request):
    return {"normal": NORMAL, "heavy": HEAVY}[request.param]


def draw(rng, projection, basis=None):
    """Isotropic samples around `CENTRE`: one width per sample makes a scale mixture."""
    widths = rng.choice(projection.sigmas, size=(SAMPLES, 1), p=projection.weights)
    directions = np.eye(len(CENTRE)) if basis is None else basis.T
    return CENTRE + widths * rng.standard_normal((SAMPLES, len(directions))) @ directions


def sigmas_off(samples, claim):
    """Largest distance of the sample mean from the claim, in standard errors."""
    error = samples.std(axis=0) / np.sqrt(len(samples))
    return np.max(np.abs(samples.mean(axis=0) - claim) / error)


def off(rng, v, projection, psi=RELU, basis=None, form="corrected"):
    x = draw(rng, projection, basis)
    gate = psi(x @ v + XI) * np.ones(len(x))
    claim = clusters.cluster_means(
        v, XI, CENTRE, projection=projection, psi=psi, basis=basis, form=form
    )
    return sigmas_off(gate, claim.psi), sigmas_off(x * gate[:, None], claim.x_psi)


@pytest.mark.parametrize("length", [0.4, 1.0, 2.5])
def test_lemma1_agrees_with_samples(rng, projection, length):
    assert max(off(rng, length * UNIT, projection)) < 3


@pytest.mark.parametrize("length", [0.4, 2.5])
def test_lemma1_as_printed_is_rejected_by_samples(rng, projection, length):
    """E4. It holds at |v| = 1 only."""
    assert min(off(rng, length * UNIT, projection, form="printed")) > 30
    assert max(off(rng, UNIT, projection, form="printed")) < 3


def test_lemma1_as_printed_gives_a_probability_above_one():
    assert clusters.cluster_means(0.4 * UNIT, XI, CENTRE, form="printed").psi > 1


def test_only_the_part_of_v_inside_the_subspace_sets_the_scale(rng):
    basis = np.eye(4)[:, :3]
    v = UNIT + np.array([0.0, 0.0, 0.0, 1.0])
    assert max(off(rng, v, NORMAL, basis=basis)) < 3
    assert min(off(rng, v, NORMAL, basis=basis, form="printed")) > 30


def test_lemma1_holds_for_a_gate_that_is_not_a_step(rng):
    assert max(off(rng, 2.5 * UNIT, HEAVY, psi=expit)) < 3
    assert min(off(rng, 2.5 * UNIT, HEAVY, psi=expit, form="printed")) > 30


@pytest.mark.parametrize("norm_of_v", [0.4, 2.5])
def test_thetas_are_their_integrals(projection, step, norm_of_v):
    r = 0.7
    closed = clusters.thetas(np.array([r / norm_of_v]), projection, step)
    integrals = clusters.thetas_by_quadrature(step, r, norm=norm_of_v, projection=projection)
    np.testing.assert_allclose(np.ravel(closed), integrals, rtol=QUADRATURE, atol=QUADRATURE)


@pytest.mark.parametrize("bounded", [Uniform(), Laplace(), Logistic(), StudentT(3.0)])
def test_thetas_are_their_integrals_for_every_density(bounded):
    closed = clusters.thetas(np.array([-0.4]), bounded, Step(0.1))
    integrals = clusters.thetas_by_quadrature(Step(0.1), -0.4, projection=bounded)
    np.testing.assert_allclose(np.ravel(closed), integrals, rtol=QUADRATURE)


CENTRES, STRENGTHS = np.stack([CENTRE, np.zeros(4), -CENTRE]), np.array([0.5, -0.7, 0.1])


def test_lemma2_agrees_with_samples(rng):
    v, pushed, gated = 3 * UNIT, 0.0, 0.0
    noise = rng.standard_normal((SAMPLES, 4))
    for centre, a in zip(CENTRES, STRENGTHS, strict=True):
        gate = a * ((centre + noise) @ v + XI > 0)
        pushed, gated = pushed + gate[:, None] * (centre + noise), gated + gate
    held = clusters.velocity(v, XI, CENTRES, STRENGTHS)
    assert sigmas_off(pushed, held.v) < 3
    assert sigmas_off(gated, held.xi) < 3
    assert sigmas_off(pushed, clusters.velocity(v, XI, CENTRES, STRENGTHS, form="printed").v) > 30


def test_lemma2_is_the_gradient_of_the_mean_activation(projection, step):
    def objective(v, xi):
        norm_of_v = np.linalg.norm(v)
        rho = (CENTRES @ v + xi) / norm_of_v
        return norm_of_v * STRENGTHS @ clusters.mean_activation(rho, projection, step)

    v = 1.7 * UNIT + 0.3
    held = clusters.velocity(v, XI, CENTRES, STRENGTHS, projection=projection, step=step)
    steps = STRIDE * np.eye(4)
    slopes = [(objective(v + e, XI) - objective(v - e, XI)) / (2 * STRIDE) for e in steps]
    slope = (objective(v, XI + STRIDE) - objective(v, XI - STRIDE)) / (2 * STRIDE)
    np.testing.assert_allclose(held.v, slopes, atol=QUOTIENT)
    np.testing.assert_allclose(held.xi, slope, atol=QUOTIENT)


@settings(max_examples=50, deadline=None)
@given(scale=st.floats(1e-3, 1e3))
def test_lemma2_ignores_the_length_of_the_node(scale):
    at_one = clusters.velocity(UNIT, XI, CENTRES, STRENGTHS)
    scaled = clusters.velocity(scale * UNIT, scale * XI, CENTRES, STRENGTHS)
    np.testing.assert_allclose(scaled.v, at_one.v, rtol=EXACT, atol=EXACT)
    assert scaled.xi == pytest.approx(at_one.xi, rel=EXACT)


def test_mean_activation_is_the_mean_of_phi(step):
    for rho in RHO:
        pieces = ((-12.0, -rho, step.c_minus), (-rho, 12.0, step.c_plus))
        mean = sum(
            quad(lambda s, c=c, rho=rho: c * (s + rho) * norm.pdf(s), a, b, epsabs=1e-13)[0]
            for a, b, c in pieces
        )
        got = clusters.mean_activation(np.array([rho]), NORMAL, step)[0]
        np.testing.assert_allclose(got, mean, atol=QUADRATURE)


def test_lemma3_slope_is_theta_1(projection, step):
    rise = clusters.mean_activation(RHO + STRIDE, projection, step) - clusters.mean_activation(
        RHO - STRIDE, projection, step
    )
    theta_1, theta_2 = clusters.thetas(RHO, projection, step)
    np.testing.assert_allclose(rise / (2 * STRIDE), theta_1, atol=QUOTIENT)
    np.testing.assert_allclose(
        clusters.mean_activation(RHO, projection, step), theta_2 + RHO * theta_1, rtol=EXACT
    )


def test_mean_activation_vanishes_on_the_left_for_relu_only():
    far = np.array([-30.0])
    assert 0 < clusters.mean_activation(far)[0] < 1e-190
    assert clusters.mean_activation(far, step=Step(0.1))[0] == pytest.approx(-3.0)


def slopes_by_difference(step):
    above, below = (clusters.thetas(RHO + h, HEAVY, step) for h in (STRIDE, -STRIDE))
    return (np.array(above) - np.array(below)) / (2 * STRIDE)


def test_lemma5_slopes_are_difference_quotients(step):
    np.testing.assert_allclose(
        clusters.theta_slopes(RHO, HEAVY, step), slopes_by_difference(step), atol=QUOTIENT
    )


@pytest.mark.parametrize("name", ["leaky", "linear", "abs"])
def test_lemma5_as_printed_does_not_hold(name):
    """E5: c_- + c_+ where the jump c_+ - c_- belongs. Right for ReLU, where they coincide."""
    printed = clusters.theta_slopes(RHO, HEAVY, STEPS[name], form="printed")
    assert np.abs(np.array(printed) - slopes_by_difference(STEPS[name])).max() > 0.1
    np.testing.assert_array_equal(
        clusters.theta_slopes(RHO, HEAVY, RELU, form="printed"),
        clusters.theta_slopes(RHO, HEAVY, RELU),
    )


@pytest.mark.parametrize("light", [NORMAL, Logistic(), Uniform(8.0), Laplace()])
def test_level_never_falls_for_log_concave_clusters(light):
    q = clusters.level(np.linspace(-7.9, 7.9, 2001), light)
    assert np.diff(q).min() > -EXACT


@pytest.mark.parametrize("heavy", [HEAVY, StudentT(1.5), StudentT(3.0)])
def test_level_falls_somewhere_for_heavy_tails(heavy):
    assert np.diff(clusters.level(np.linspace(-8.0, 8.0, 2001), heavy)).min() < -1e-4


def test_level_of_a_leaky_gate_is_its_definition():
    theta_1, theta_2 = clusters.thetas(RHO, NORMAL, Step(0.1))
    np.testing.assert_allclose(
        clusters.level(RHO, NORMAL, Step(0.1)), RHO + theta_2 / theta_1, rtol=EXACT
    )


def test_rejects_a_node_that_cannot_see_the_cluster():
    with pytest.raises(ValueError, match=r"R R\^T v = 0"):
        clusters.cluster_means(np.eye(4)[3], XI, CENTRE, basis=np.eye(4)[:, :3])
    with pytest.raises(ValueError, match=r"v must not be zero"):
        clusters.velocity(np.zeros(4), XI, CENTRES, STRENGTHS)

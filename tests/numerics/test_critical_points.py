"""Lemma 4 and Theorem 3: balances, their linearisation judged by finite differences and flows."""

import itertools

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from joma.theory import clusters, critical_points
from joma.theory.critical_points import TwoClusters
from joma.theory.projections import (
    NORMAL,
    GaussianMixture,
    Laplace,
    Logistic,
    StudentT,
    Uniform,
)

HEAVY = GaussianMixture((0.9, 0.1), (0.3, 3.0))
LEVELS = [0.5, 1.0, 1.5, 2.0]
ORDERED = list(itertools.permutations(range(3), 2))  # (index of r_-, index of r_+)
AXIS = np.eye(4)[0]
# Roots are solved to the last bits.
ROOT = 1e-13
# A balance is a difference of numbers of order a_-, which reaches 1e3.
BALANCE = 1e-11
# Central differences, stride 1e-5: h² plus rounding over h, relative to the largest entry.
STRIDE, QUOTIENT = 1e-5, 1e-7


def pairs(level):
    roots = critical_points.level_roots(level, HEAVY)
    return [(float(roots[i]), float(roots[j])) for i, j in ORDERED]


ALL_PAIRS = [pair for level in LEVELS for pair in pairs(level)]


def jacobian(flow, at):
    columns = [(flow(at + e) - flow(at - e)) / (2 * STRIDE) for e in STRIDE * np.eye(len(at))]
    return np.stack(columns, axis=1)


def joint_flow(pair, form="corrected"):
    """The velocity as a function of the concatenated state (v, xi)."""

    def flow(state):
        held = pair.velocity(state[:-1], float(state[-1]), form=form)
        return np.append(held.v, held.xi)

    return flow


@pytest.mark.parametrize("level", LEVELS)
def test_roots_share_the_level(level):
    roots = critical_points.level_roots(level, HEAVY)
    assert len(roots) == 3
    np.testing.assert_allclose(clusters.level(roots, HEAVY), level, rtol=ROOT)


def test_turning_points_separate_the_roots():
    low, high = critical_points.turning_points(HEAVY)
    left, centre, right = critical_points.level_roots(1.0, HEAVY)
    assert left < low < centre < high < right


@pytest.mark.parametrize("light", [NORMAL, Uniform(), Logistic(), Laplace()])
def test_light_tailed_clusters_never_balance(light):
    assert critical_points.turning_points(light).size == 0
    assert len(critical_points.level_roots(1.2, light)) == 1


def test_eqn58_is_sufficient_but_not_necessary():
    """t(3) misses Eqn. 58 (0.203 < 1/4), and two of its points balance all the same."""
    assert len(critical_points.level_roots(1.2, StudentT(3.0))) == 2


def test_strength_ratio_leaves_the_range_the_paper_gives():
    """E18: "for all s in S, s in (1/2, 1) U (1, 2)"."""
    ratios = [critical_points.strength_ratio(*pair, HEAVY) for pair in ALL_PAIRS]
    assert max(ratios) > 1000
    assert min(ratios) < 1e-3


@pytest.mark.parametrize(("r_minus", "r_plus"), ALL_PAIRS)
def test_printed_point_balances_the_printed_flow_only(r_minus, r_plus):
    point = critical_points.printed_point(r_minus, r_plus, 1.5 * AXIS, projection=HEAVY)
    scale = max(point.pair.a_plus, point.pair.a_minus)
    printed = point.pair.velocity(point.mu, point.xi, form="printed")
    corrected = point.pair.velocity(point.mu, point.xi)
    assert np.abs(np.append(printed.v, printed.xi)).max() < BALANCE * scale
    assert np.abs(np.append(corrected.v, corrected.xi)).max() > 1e-4


@pytest.mark.parametrize("norm", [0.3, 1.0, 2.7])
@pytest.mark.parametrize(("rho_minus", "rho_plus"), ALL_PAIRS)
def test_every_point_of_a_ray_balances(rho_minus, rho_plus, norm):
    point = critical_points.ray_point(rho_minus, rho_plus, AXIS, projection=HEAVY, norm=norm)
    held = point.pair.velocity(point.mu, point.xi)
    scale = max(point.pair.a_plus, point.pair.a_minus)
    assert np.abs(np.append(held.v, held.xi)).max() < BALANCE * scale


@pytest.mark.parametrize(("r_minus", "r_plus"), ALL_PAIRS)
def test_printed_linearisation_is_the_jacobian_of_the_printed_flow(r_minus, r_plus):
    point = critical_points.printed_point(r_minus, r_plus, 1.5 * AXIS, projection=HEAVY)

    def flow(v):
        return point.pair.velocity(v, point.xi, form="printed").v

    truth = -jacobian(flow, point.mu)
    got = critical_points.printed_linearisation(point)
    scale = max(np.abs(got).max(), point.pair.a_minus * 1e-4)  # rounding grows with a_-
    np.testing.assert_allclose(got, truth, atol=100 * QUOTIENT * scale)


@pytest.mark.parametrize("level", [1.0, 1.25, 1.5])
def test_theorem3_sign_as_printed_calls_an_unstable_point_stable(level):
    """E6: right root to centre root, s = -1. The flow leaves in every direction."""
    _, centre, right = critical_points.level_roots(level, HEAVY).tolist()
    point = critical_points.printed_point(right, centre, 1.5 * AXIS, projection=HEAVY)

    def flow(v):
        return point.pair.velocity(v, point.xi, form="printed").v

    truth = np.linalg.eigvals(-jacobian(flow, point.mu)).real
    stated = np.linalg.eigvalsh(critical_points.printed_linearisation(point, form="printed"))
    assert truth.max() < 0 < stated.min()


@pytest.mark.parametrize(("r_minus", "r_plus"), ALL_PAIRS)
def test_printed_linearisation_is_never_positive_definite(r_minus, r_plus):
    """E20, so Theorem 3's condition for stability is empty."""
    point = critical_points.printed_point(r_minus, r_plus, 1.5 * AXIS, projection=HEAVY)
    assert np.linalg.eigvalsh(critical_points.printed_linearisation(point)).min() < 0


def test_printed_flow_leaves_its_critical_point_along_mu():
    """E20: repelled along mu, attracted across it."""
    _, centre, right = critical_points.level_roots(1.25, HEAVY).tolist()
    point = critical_points.printed_point(centre, right, 1.5 * AXIS, projection=HEAVY)

    def distance(start):
        result = solve_ivp(
            lambda _, v: point.pair.velocity(v, point.xi, form="printed").v,
            (0.0, 3.0),
            start,
            rtol=1e-10,
            atol=1e-12,
        )
        return np.abs(result.y[:, -1] - point.mu)

    assert distance(1.001 * point.mu)[0] > 20 * 0.001 * point.norm
    assert distance(point.mu + 1e-3 * np.eye(4)[1])[1] < 0.1 * 1e-3


@pytest.mark.parametrize("norm", [1.0, 2.7])
@pytest.mark.parametrize(("rho_minus", "rho_plus"), pairs(1.0) + pairs(1.5))
def test_linearisation_is_the_jacobian_of_the_flow(rho_minus, rho_plus, norm):
    point = critical_points.ray_point(rho_minus, rho_plus, AXIS, projection=HEAVY, norm=norm)
    truth = -jacobian(joint_flow(point.pair), np.append(point.mu, point.xi))
    got = critical_points.linearisation(point)
    np.testing.assert_allclose(got, truth[:4, :4], atol=QUOTIENT * np.abs(truth).max())


@pytest.mark.parametrize(("rho_minus", "rho_plus"), pairs(1.0))
def test_joint_rates_are_one_zero_one_mixed_and_the_rest_across(rho_minus, rho_plus):
    point = critical_points.ray_point(rho_minus, rho_plus, AXIS, projection=HEAVY)
    rates = critical_points.eigenvalues(point)
    truth = -jacobian(joint_flow(point.pair), np.append(point.mu, point.xi))
    expected = np.sort([0.0, rates.joint, *3 * [rates.perpendicular]])
    got = np.sort(np.linalg.eigvals(truth).real)
    np.testing.assert_allclose(got, expected, atol=10 * QUOTIENT * np.abs(truth).max())
    along_ray = truth @ np.append(point.mu, point.xi)
    assert np.abs(along_ray).max() < 10 * QUOTIENT * np.abs(truth).max()


def test_a_ray_exists_at_one_distance_only():
    _, centre, right = critical_points.level_roots(1.0, HEAVY).tolist()
    point = critical_points.ray_point(centre, right, AXIS, projection=HEAVY)
    moved = TwoClusters(
        centre=1.1 * point.pair.centre, a_minus=point.pair.a_minus, projection=HEAVY
    )
    assert np.abs(moved.velocity(point.mu, point.xi).v).max() > 0.01


GENERIC = TwoClusters(centre=2 * AXIS, a_minus=1.0)


def flowed(decay, until):
    flow = joint_flow(GENERIC)
    start = np.array([0.1, 0.05, 0.02, 0.0, 0.0])
    result = solve_ivp(
        lambda _, y: flow(y) - decay * y, (0.0, until), start, rtol=1e-10, atol=1e-12
    )
    return result.y[:, -1]


def test_generic_clusters_make_a_node_grow_linearly():
    growth = critical_points.growth(GENERIC)
    state = flowed(0.0, 400.0)
    length = np.linalg.norm(state[:-1])
    # The start is forgotten like ln(t)/t.
    assert length / 400 == pytest.approx(growth.rate, rel=1e-3)
    assert state[-1] / length == pytest.approx(growth.tilt, rel=1e-3)


def test_weight_decay_gives_the_attractor():
    v, xi = critical_points.weight_decay_attractor(GENERIC, decay=0.1)
    np.testing.assert_allclose(v, [16.199191, 0, 0, 0], atol=1e-6)
    assert xi == pytest.approx(3.919294, abs=1e-6)
    np.testing.assert_allclose(flowed(0.1, 400.0), np.append(v, xi), atol=1e-6)


def test_weight_decay_attractor_is_stable():
    v, xi = critical_points.weight_decay_attractor(GENERIC, decay=0.1)
    rates = np.linalg.eigvals(-jacobian(joint_flow(GENERIC), np.append(v, xi))).real + 0.1
    assert rates.min() > 0.05


def test_a_node_that_nothing_attracts_is_refused():
    with pytest.raises(ValueError, match=r"v shrinks to 0"):
        critical_points.growth(TwoClusters(centre=0.01 * AXIS, a_minus=5.0))
    with pytest.raises(ValueError, match=r"got decay = 0"):
        critical_points.weight_decay_attractor(GENERIC, decay=0.0)

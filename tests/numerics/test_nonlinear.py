"""Eqn. 6: quadrature, inverse and integrators agree, also where delta is far below 1e-16."""

import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp

from joma.theory import convergence, nonlinear

MU = np.array([0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0])
# Closed forms against themselves: rounding only.
EXACT = 1e-13
# LSODA at 1e-10 with some thousand steps; DOP853 at 1e-12 does better and gets the same bar.
RTOL, ATOL = 1e-7, 1e-8


@pytest.mark.parametrize("progress", [-3.0, -0.7, -1e-3, 1e-4, 0.5, 2.0, 30.0])
def test_time_is_the_integral_of_the_slowness(progress):
    for mu in MU:
        expected, _ = quad(
            lambda s, mu=mu: np.exp(-0.5 * (mu * np.expm1(-s)) ** 2),
            0.0,
            progress,
            epsabs=1e-14,
            epsrel=1e-13,
            limit=200,
        )
        got = nonlinear.time_to_reach(np.array([progress]), np.array([mu]))
        np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_time_is_the_integral_of_eqn_79():
    expected, _ = quad(lambda x: np.exp(-2 * x**2) / (1 - x), 0.0, 0.9, epsrel=1e-13)
    got = nonlinear.time_to_reach(np.array([np.log(10.0)]), np.array([2.0]))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_time_splits_into_leading_term_and_remainder():
    progress = np.geomspace(1e-3, 1e5, 30)[:, None]
    leading = np.exp(-(MU**2) / 2) * progress
    remainder = nonlinear.remainder(progress, MU)
    np.testing.assert_allclose(nonlinear.time_to_reach(progress, MU), leading + remainder)
    assert (np.diff(remainder, axis=0) >= -1e-15).all()
    assert (remainder >= 0).all() and (remainder <= nonlinear.remainder_limit(MU) + 1e-15).all()


def test_remainder_as_printed_leaves_its_range():
    """With exp(-mu**2) for exp(-mu**2 / 2), as after Eqn. 88, it is not in (0, 2.2533) (E9)."""
    at = np.array([12 * np.log(10)]), np.array([2.0])
    bound = convergence.remainder_bound(form="printed")
    assert 0 < nonlinear.remainder(*at)[0] < bound
    assert nonlinear.remainder(*at, form="printed")[0] == pytest.approx(4.0919, abs=1e-4)
    assert nonlinear.remainder(*at, form="printed")[0] > bound


def test_remainder_limit_tends_to_its_asymptote():
    mu = np.array([10.0, 30.0, 100.0])
    asymptote = np.sqrt(np.pi / 2) / mu + 1 / mu**2
    error = np.abs(nonlinear.remainder_limit(mu) / asymptote - 1)
    assert (error < 2 / mu**2).all()


@pytest.mark.parametrize("v0", [0.0, -0.4])
def test_progress_inverts_the_time(v0):
    """Up to eleven orders of magnitude in t and mu up to 12, where L reaches 1e40."""
    t, mu = np.geomspace(1e-6, 1e5, 40), np.concatenate([MU, [8.0, 12.0]])
    reached = nonlinear.progress(t, mu, v0=v0)
    start = nonlinear.time_to_reach(nonlinear.log_progress(np.full_like(mu, v0), mu), mu)
    elapsed = nonlinear.time_to_reach(reached, mu) - start
    np.testing.assert_allclose(elapsed, np.tile(t[:, None], len(mu)), rtol=EXACT, atol=1e-15)


def test_solution_matches_integrator():
    t, mu = np.linspace(0.0, 3.0, 13), MU[:5]
    np.testing.assert_allclose(
        nonlinear.solution(t, mu), nonlinear.simulate(t, mu), rtol=RTOL, atol=ATOL
    )


@pytest.mark.parametrize("temperature", [0.8, 1.5])
def test_solution_matches_integrator_from_any_start(temperature):
    """Negative `mu`, starts on either side of zero, and all scales."""
    t, mu = np.linspace(0.0, 2.0, 9), np.array([2.0, 1.0, -1.5, -2.0])
    v0 = np.array([-0.7, 0.9, -0.2, 1.1])
    setting = {"v0": v0, "normaliser": 1.3, "temperature": temperature, "kappa": 1.2}
    np.testing.assert_allclose(
        nonlinear.solution(t, mu, **setting),
        nonlinear.simulate(t, mu, **setting),
        rtol=RTOL,
        atol=ATOL,
    )


def test_progress_matches_an_integrator_in_log_progress():
    """Where delta is e**-1754 and 1 - v / mu is zero in float64."""
    mu, t = np.array([1.0, 2.0, 4.0]), np.array([0.3, 1.0, 3.0])
    path = solve_ivp(
        lambda _, x: np.exp(0.5 * (mu * np.expm1(-x)) ** 2),
        (0.0, 3.0),
        np.zeros(3),
        "DOP853",
        t_eval=t,
        rtol=1e-12,
        atol=1e-13,
    ).y.T
    reached = nonlinear.progress(t, mu)
    np.testing.assert_allclose(reached, path, rtol=1e-9)
    assert reached[1, 2] == pytest.approx(1753.925306554)
    assert 1 - nonlinear.solution(t, mu)[1, 2] / 4.0 == 0.0


def test_solution_is_odd_in_mu():
    t = np.array([0.2, 1.0])
    np.testing.assert_array_equal(nonlinear.solution(t, -MU), -nonlinear.solution(t, MU))


def test_target_zero_stays_at_zero():
    assert nonlinear.solution(np.array([3.0]), np.zeros(1)) == 0


def test_progress_beyond_the_largest_float_is_infinite():
    t, mu = np.array([0.01, 0.5]), np.array([40.0])
    assert np.isinf(nonlinear.progress(t, mu)).ravel().tolist() == [False, True]
    assert nonlinear.solution(t, mu)[1, 0] == 40.0


@pytest.mark.parametrize(("factor", "settles"), [(0.9, True), (1.1, False)])
def test_euler_settles_only_below_its_largest_step(factor, settles):
    mu = np.array([2.0])
    eta = factor * nonlinear.largest_euler_step(mu)
    v = mu - 1e-3
    for _ in range(400):
        v = v + eta * nonlinear.velocity(v, mu)
    assert (np.abs(v - mu) < 1e-6).all() == settles


def test_linear_attention_matches_integrator():
    mu, c = np.array([2.0, 1.0]), 0.7
    path = solve_ivp(
        lambda _, x: np.sqrt((mu * np.expm1(-x)) ** 2 + c),
        (0.0, 4.0),
        np.zeros(2),
        "DOP853",
        t_eval=[0.5, 4.0],
        rtol=1e-12,
        atol=1e-13,
    ).y.T
    for t, reached in zip([0.5, 4.0], path, strict=True):
        np.testing.assert_allclose(nonlinear.linear_attention_time(reached, mu, c=c), t, rtol=1e-9)


def test_linear_attention_converges_at_its_rate():
    mu, far = np.array([2.0, 1.0]), 1e3
    steps = [nonlinear.linear_attention_time(np.full(2, x), mu, c=0.7) for x in (far, far + 1)]
    np.testing.assert_allclose(
        1 / (steps[1] - steps[0]), nonlinear.linear_attention_rate(mu, c=0.7), rtol=1e-9
    )


def test_rejects_starts_beyond_the_fixed_point():
    with pytest.raises(ValueError, match=r"got max v / mu = 1\.5\. Use simulate"):
        nonlinear.solution(np.array([1.0]), np.array([2.0]), v0=3.0)
    beyond = nonlinear.simulate(np.array([0.5, 3.0]), np.array([1.0]), v0=2.0)
    assert beyond[0, 0] > 1 and beyond[1, 0] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("t", [-1.0, np.inf, np.nan])
def test_rejects_impossible_times(t):
    with pytest.raises(ValueError, match="finite and not negative"):
        nonlinear.progress(np.array([t]), np.ones(1))


def test_linear_attention_needs_a_positive_invariant():
    with pytest.raises(ValueError, match="must be positive for linear attention; got 0"):
        nonlinear.linear_attention_rate(np.ones(1), c=0.0)

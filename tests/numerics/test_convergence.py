"""Theorem 4: its identity holds, its printed threshold does not."""

import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp

from joma.theory import convergence, nonlinear

PAIRS = [(2.0, 1.0), (3.0, 2.0), (3.0, 1.0), (1.0, 2.5)]
PROGRESS = np.array([0.1, 1.0, 4.6, 20.0, 100.0])
# DOP853 at 1e-12 over five orders of magnitude of growth.
RTOL = 1e-9


@pytest.mark.parametrize(("mu_j", "mu_k"), PAIRS)
def test_ratio_matches_integrator(mu_j, mu_k):
    def slope(k, j):
        return np.exp(((mu_j * np.expm1(-j)) ** 2 - (mu_k * np.expm1(-k)) ** 2) / 2)

    path = solve_ivp(slope, (0.0, 100.0), [0.0], "DOP853", t_eval=PROGRESS, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        convergence.ratio(PROGRESS, mu_j, mu_k), path.y[0] / PROGRESS, rtol=RTOL
    )


@pytest.mark.parametrize(("mu_j", "mu_k"), PAIRS)
def test_ratio_is_the_leading_one_up_to_the_deviation(mu_j, mu_k):
    deviation = convergence.deviation(PROGRESS, mu_j, mu_k)
    expected = convergence.leading_ratio(mu_j, mu_k) * (1 + deviation)
    np.testing.assert_allclose(convergence.ratio(PROGRESS, mu_j, mu_k), expected, rtol=1e-10)


def test_printed_threshold_is_passed_while_the_deviation_is_large():
    """mu_j = 3, mu_k = 2, delta_k = .01: ninety times below the printed .92, and Lambda = .38."""
    progress = np.array([np.log(100.0)])
    assert np.exp(-progress[0]) < convergence.threshold(2.0, form="printed") / 90
    assert convergence.deviation(progress, 3.0, 2.0)[0] > 0.3
    assert convergence.deviation(progress, 3.0, 2.0, form="printed")[0] < 1e-3


@pytest.mark.parametrize(("mu_j", "mu_k"), PAIRS)
def test_far_below_the_corrected_threshold_the_deviation_is_small(mu_j, mu_k):
    far = np.array([-100 * np.log(convergence.threshold(mu_k))])
    assert np.abs(convergence.deviation(far, mu_j, mu_k))[0] < 0.01


def test_lag_stays_below_the_sharp_bound_and_comes_near():
    mus = [0.2, 1.0, 3.0, 12.0, convergence.largest_remainder().at]
    largest = max(
        np.abs(convergence.lag(PROGRESS, mu_j, mu_k)).max() for mu_j in mus for mu_k in mus
    )
    assert 0.7 < largest < convergence.lag_bound() < 0.87 < convergence.lag_bound(form="printed")


def test_largest_remainder_is_the_largest():
    top = convergence.largest_remainder()
    others = nonlinear.remainder_limit(np.linspace(0.01, 20.0, 500))
    assert others.max() <= top.value
    assert others.max() == pytest.approx(top.value, rel=1e-3)


def test_eqn_84_holds():
    """dF/dmu = zeta - mu F, by a central difference."""
    progress, mu, h = np.array([np.log(10.0)]), np.array([2.0]), 1e-5
    times = [nonlinear.time_to_reach(progress, mu + s * h)[0] for s in (-1, 0, 1)]
    zeta, _ = quad(lambda x: 2.0 * (1 + x) * np.exp(-2 * x**2), 0, 0.9)
    assert (times[2] - times[0]) / (2 * h) == pytest.approx(zeta - 2.0 * times[1], rel=1e-8)


def test_late_ratio_is_sharp_where_the_leading_one_is_not():
    progress = np.array([20.0])
    t = nonlinear.time_to_reach(progress, np.array([2.0]))
    exact = convergence.ratio(progress, 3.0, 2.0)[0]
    assert convergence.late_ratio(t, 3.0, 2.0)[0] == pytest.approx(exact, rel=1e-6)
    assert abs(convergence.leading_ratio(3.0, 2.0) / exact - 1) > 0.05


@pytest.mark.parametrize(
    ("function", "maximum", "bound"),
    [
        (convergence.lemma6, convergence.lemma6_maximum, 1 / np.sqrt(2)),
        (convergence.lemma7, convergence.lemma7_maximum, 1.0),
    ],
    ids=["lemma 6", "lemma 7"],
)
def test_lemmas_bound_their_functions(function, maximum, bound):
    y, top = np.linspace(0.0, 20.0, 4001), maximum()
    values = function(y)
    assert values[0] == 0 and (values >= 0).all()
    assert values.max() <= top.value < bound
    assert abs(y[values.argmax()] - top.at) < 0.01


def test_lemma_7_is_the_gaussian_integral():
    for y in (0.3, 2.0, 5.0):
        integral, _ = quad(lambda x, y=y: np.exp((x**2 - y**2) / 2), 0, y)
        assert convergence.lemma7(np.array([y]))[0] == pytest.approx(integral, rel=1e-10)


def test_rejects_tokens_that_have_not_moved():
    with pytest.raises(ValueError, match="must be positive; got min 0"):
        convergence.ratio(np.array([0.0]), 2.0, 1.0)

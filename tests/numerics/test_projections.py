"""Densities of unit projections: closed forms against quadrature, far into the tails."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import erfcx, factorial, factorial2, gamma

from joma.theory import projections
from joma.theory.projections import (
    NORMAL,
    GaussianMixture,
    Laplace,
    Logistic,
    StudentT,
    Uniform,
    heaviness,
)

FAMILY = {
    "normal": (NORMAL, stats.norm()),
    "uniform": (Uniform(), stats.uniform(-1, 2)),
    "laplace": (Laplace(), stats.laplace()),
    "logistic": (Logistic(0.5), stats.logistic(scale=0.5)),
    "t3": (StudentT(3.0), stats.t(3)),
    "t1.5": (StudentT(1.5), stats.t(1.5)),
}
HEAVY = GaussianMixture((0.9, 0.1), (0.3, 3.0))
RHO = np.array([-2.5, -0.7, 0.0, 0.4, 3.0])
# Adaptive quadrature of heavy tails is good to 1e-8; a wrong constant shows at 1e-2.
QUADRATURE = 1e-7
# Closed forms against other closed forms: rounding only.
EXACT = 1e-12


@pytest.fixture(params=FAMILY)
def member(request):
    return FAMILY[request.param]


def integrate(function, low, high):
    """Quadrature in two pieces, so that the mass near the origin is not missed."""
    middle = min(max(0.0, low), high)
    return sum(quad(function, a, b, limit=400)[0] for a, b in ((low, middle), (middle, high)))


def test_density_and_cdf_are_scipys(member):
    ours, theirs = member
    np.testing.assert_allclose(ours.density(RHO), theirs.pdf(RHO), rtol=EXACT)
    np.testing.assert_allclose(ours.cdf(RHO), theirs.cdf(RHO), rtol=EXACT)


def test_upper_moment_and_excess_are_integrals_of_the_density(member):
    ours, theirs = member
    high = theirs.support()[1]
    for rho in RHO:
        start = min(-rho, high)
        moment = integrate(lambda s: s * theirs.pdf(s), start, high)
        excess = integrate(lambda s, rho=rho: (s + rho) * theirs.pdf(s), start, high)
        at = np.array([rho])
        np.testing.assert_allclose(
            ours.upper_moment(at)[0], moment, rtol=QUADRATURE, atol=QUADRATURE
        )
        np.testing.assert_allclose(ours.excess(at)[0], excess, rtol=QUADRATURE, atol=QUADRATURE)


def test_mixture_is_the_weighted_sum_of_its_parts():
    for name in ("density", "cdf", "upper_moment", "excess"):
        parts = [getattr(GaussianMixture((1.0,), (s,)), name)(RHO) for s in HEAVY.sigmas]
        np.testing.assert_allclose(
            getattr(HEAVY, name)(RHO), np.dot(HEAVY.weights, parts), rtol=EXACT
        )


@pytest.mark.parametrize("rho", [-3.0, -5.0, -8.0, -12.0])
def test_left_tail_agrees_with_erfcx(rho):
    x = -rho
    expected = stats.norm.pdf(x) * (1 - x * np.sqrt(np.pi / 2) * erfcx(x / np.sqrt(2)))
    # The erfcx form itself loses x² digits to its subtraction.
    np.testing.assert_allclose(NORMAL.excess(np.array([rho]))[0], expected, rtol=x**2 * 1e-15)


@pytest.mark.parametrize("rho", [-2.9999999, -3.0000001])
def test_left_tail_joins_the_body(rho):
    naive = rho * stats.norm.cdf(rho) + stats.norm.pdf(rho)
    np.testing.assert_allclose(NORMAL.excess(np.array([rho]))[0], naive, rtol=EXACT)


@pytest.mark.parametrize("rho", [-50.0, -1e3, -1e6])
def test_ratio_survives_where_both_sides_underflow(rho):
    x = -rho
    series = 1 / x - 2 / x**3 + 10 / x**5 - 74 / x**7  # off by 706/x^9
    assert NORMAL.cdf(np.array([rho]))[0] == 0
    np.testing.assert_allclose(NORMAL.excess_over_cdf(np.array([rho]))[0], series, rtol=1e-10)


def test_ratio_is_undefined_left_of_the_support():
    assert np.isnan(Uniform().excess_over_cdf(np.array([-1.5]))[0])


@pytest.mark.parametrize("dimension", range(2, 8))
def test_normal_projects_to_normal_in_every_dimension(dimension):
    def radial(q):
        return np.exp(-(q**2) / 2) / (2 * np.pi) ** (dimension / 2)

    got = projections.projection_density(radial, RHO, dimension=dimension)
    np.testing.assert_allclose(got, stats.norm.pdf(RHO), rtol=QUADRATURE)


@pytest.mark.parametrize("dimension", [2, 5])
def test_multivariate_t_projects_to_t(dimension):
    joint = stats.multivariate_t(np.zeros(dimension), np.eye(dimension), df=3)

    def radial(q):
        return np.atleast_1d(joint.pdf(np.outer(q, np.eye(dimension)[0])))

    got = projections.projection_density(radial, RHO, dimension=dimension)
    np.testing.assert_allclose(got, StudentT(3.0).density(RHO), rtol=QUADRATURE)


@pytest.mark.parametrize("n", range(2, 8))
def test_eqn36_is_the_prefactor_of_eqn35(n):
    eqn35 = (n - 1) * np.pi ** ((n - 1) / 2) / gamma((n + 1) / 2)
    if n % 2:
        eqn36 = 2 * np.pi ** ((n - 1) / 2) / factorial((n - 3) // 2)
    else:
        below = factorial2(n - 3) if n > 2 else 1.0
        eqn36 = 2 ** (n / 2) * np.pi ** (n / 2 - 1) / below
    np.testing.assert_allclose(eqn35, eqn36, rtol=EXACT)


def test_only_heavy_tails_satisfy_eqn58():
    light = [NORMAL, Uniform(2.0), Logistic(3.0), StudentT(3.0)]
    assert max(heaviness(p) for p in light) < 0.25
    assert heaviness(Laplace(2.0)) == pytest.approx(0.25, rel=EXACT)
    assert heaviness(StudentT(2.0)) == pytest.approx(0.25, rel=EXACT)
    assert min(heaviness(HEAVY), heaviness(StudentT(1.5))) > 0.25


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StudentT(1.0), r"df must exceed 1; got df = 1"),
        (lambda: GaussianMixture((0.5, 0.4), (1.0, 2.0)), r"sum to 0\.9"),
        (lambda: GaussianMixture((1.0,), (1.0, 2.0)), r"one positive weight per positive sigma"),
        (lambda: GaussianMixture((1.0,), (-1.0,)), r"one positive weight per positive sigma"),
        (
            lambda: projections.projection_density(np.exp, RHO, dimension=1),
            r"got dimension = 1",
        ),
    ],
)
def test_rejects_what_is_not_a_projection(build, message):
    with pytest.raises(ValueError, match=message):
        build()

"""CDAG Theorem 1: the counterexample, the bound that holds, and that it is attained."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joma.theory import cdag
from joma.theory.cdag import Angles, Links

# Cosines of sums of angles: rounding only.
EXACT = 1e-12
TRIPLES = [Angles(0.2, 0.3, 0.4), Angles(0.5, 0.5, 0.5), Angles(0.3, 0.9, 0.35)]


def unit(angle):
    return np.array([np.cos(angle), np.sin(angle)])


def turned(rng, vector, angle):
    """A unit vector at `angle` from a unit vector, in a random direction."""
    side = rng.standard_normal(len(vector))
    side -= (side @ vector) * vector
    return np.cos(angle) * vector + np.sin(angle) * side / np.linalg.norm(side)


def test_three_positive_correlations_are_not_enough():
    """E22: the printed theorem promises a positive correlation here, and it is -1/4."""
    links = cdag.counterexample()
    given_angles = cdag.angles(links)
    np.testing.assert_allclose(np.cos(given_angles), 0.5, rtol=EXACT)
    assert cdag.guarantees_positive(given_angles, form="printed")
    assert not cdag.guarantees_positive(given_angles)
    assert cdag.correlation(links) == pytest.approx(-0.25, rel=EXACT)


@pytest.mark.parametrize("triple", TRIPLES)
def test_bound_is_attained_in_the_plane(triple):
    one, two, three = triple
    links = Links(unit(0.0), unit(one), unit(one + three), unit(one + three + two))
    np.testing.assert_allclose(cdag.angles(links), triple, rtol=EXACT)
    assert cdag.correlation(links) == pytest.approx(cdag.lower_bound(triple), rel=EXACT)


@pytest.mark.parametrize("dimension", [2, 3, 8])
@pytest.mark.parametrize("triple", TRIPLES)
def test_nothing_falls_below_the_bound(rng, triple, dimension):
    bound = cdag.lower_bound(triple)
    for _ in range(500):
        p = np.eye(dimension)[0]
        z_alpha = turned(rng, p, triple.theta_1)
        z_beta = turned(rng, z_alpha, triple.theta_3)
        links = Links(p, z_alpha, z_beta, turned(rng, z_beta, triple.theta_2))
        assert cdag.correlation(links) >= bound - EXACT


@pytest.mark.parametrize("triple", TRIPLES)
def test_an_anticorrelated_latent_changes_nothing(rng, triple):
    p = np.eye(5)[0]
    z_alpha = turned(rng, p, triple.theta_1)
    z_beta = turned(rng, z_alpha, triple.theta_3)
    f_k = turned(rng, z_beta, triple.theta_2)
    plus, minus = Links(p, z_alpha, z_beta, f_k), Links(p, z_alpha, -z_beta, -f_k)
    np.testing.assert_allclose(cdag.angles(plus), cdag.angles(minus), rtol=1e-7)
    assert cdag.correlation(plus) == pytest.approx(cdag.correlation(minus), rel=EXACT)


@settings(max_examples=50, deadline=None)
@given(scales=st.tuples(*4 * [st.floats(1e-3, 1e3)]))
def test_scale_does_not_matter(scales):
    links = cdag.counterexample()
    scaled = Links(*(s * v for s, v in zip(scales, links, strict=True)))
    assert cdag.correlation(scaled) == pytest.approx(cdag.correlation(links), rel=EXACT)


@pytest.mark.parametrize(("c_1", "c_2", "c_3"), [(0.5, 0.5, 0.5), (0.3, 0.8, -0.4)])
def test_generic_position_gives_the_product(rng, c_1, c_2, c_3):
    samples = 200_000

    def mixed(c, vector):
        return c * vector + np.sqrt(1 - c**2) * rng.standard_normal(samples)

    z_alpha = rng.standard_normal(samples)
    z_beta = mixed(c_3, z_alpha)
    links = Links(mixed(c_1, z_alpha), z_alpha, z_beta, mixed(c_2, z_beta))
    # Each factor is a sample correlation, with a standard error of at most 1/sqrt(samples).
    tolerance = 3 * (abs(c_1 * c_2 * c_3) + abs(c_1 * c_3)) / np.sqrt(samples)
    expected = cdag.generic_correlation(c_1, c_2, c_3)
    assert cdag.correlation(links) == pytest.approx(expected, abs=tolerance)


def test_parallel_vectors_have_no_angle():
    v = np.array([0.1, 0.2, 0.7])
    np.testing.assert_allclose(cdag.angles(Links(v, v, v, 3 * v)), 0.0, atol=1e-7)


def test_no_bound_beyond_a_right_angle():
    with pytest.raises(ValueError, match=r"pi/2 = 1\.5708; got 1\.6000"):
        cdag.lower_bound(Angles(0.5, 0.6, 0.5))

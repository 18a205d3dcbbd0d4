"""Lemmas 8 and 9, Theorem 5 and Eqn. 8 against exact enumeration and sampled trees."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joma.theory import hblt

# Fractions against float64 closed forms: rounding only, more of it if rho is close to 1.
EXACT, ROUNDING = 1e-14, 1e-9
CLASSES = (Fraction(9, 10), Fraction(7, 10), Fraction(1)), (Fraction(1, 2), *2 * (Fraction(1, 4),))
SIZES = [(levels, ancestor) for levels in (2, 4, 5) for ancestor in range(levels)]


def enumerated(top_zero, trunk, left, right):
    """P[y_l=1|y_m=1] over all states of a trunk that splits; edge polarities as fractions."""
    both = one = Fraction(0)
    nodes = 1 + len(trunk) + len(left) + len(right)
    for bits in product((0, 1), repeat=nodes):
        stem = bits[: 1 + len(trunk)]
        arms = bits[len(stem) : len(stem) + len(left)], bits[len(stem) + len(left) :]
        weight = top_zero if bits[0] == 0 else 1 - top_zero
        paths = [(stem, trunk), ((stem[-1], *arms[0]), left), ((stem[-1], *arms[1]), right)]
        for path, rhos in paths:
            for (a, b), rho in zip(pairwise(path), rhos, strict=True):
                weight *= (1 + rho) / 2 if a == b else (1 - rho) / 2
        y_l, y_m = ((stem[-1], *arms[0])[-1], (stem[-1], *arms[1])[-1])
        one += weight * y_m
        both += weight * y_m * y_l
    return both / one


def even_tree(top_zero, rho, levels, ancestor):
    arm = (rho,) * ancestor
    return enumerated(top_zero, (rho,) * (levels - 1 - ancestor), arm, arm)


def test_lemma8_edges_multiply():
    a, b = 0.75, -0.5  # exact in binary
    np.testing.assert_array_equal(
        hblt.edge_matrix(a) @ hblt.edge_matrix(b), hblt.edge_matrix(a * b)
    )
    np.testing.assert_array_equal(
        hblt.edge_matrix(a) @ hblt.polarity_vector(b), hblt.polarity_vector(a * b)
    )


def test_lemma9_a_path_is_one_edge():
    rhos = [0.9, -0.4, 0.7]
    path = np.linalg.multi_dot([hblt.edge_matrix(rho) for rho in rhos])
    np.testing.assert_allclose(path, hblt.edge_matrix(hblt.path_polarity(rhos)), rtol=EXACT)


@pytest.mark.parametrize("rho", [Fraction(4, 5), Fraction(-1, 2), Fraction(0)])
@pytest.mark.parametrize(("levels", "ancestor"), SIZES)
def test_theorem5_is_exact(rho, levels, ancestor):
    top_zero = Fraction(17, 20)
    truth = even_tree(top_zero, rho, levels, ancestor)
    got = hblt.cooccurrence(float(rho), float(2 * top_zero - 1), levels=levels, ancestor=ancestor)
    np.testing.assert_allclose(got, float(truth), rtol=EXACT)


def test_every_edge_may_have_its_own_polarity():
    trunk, left, right = (Fraction(9, 10),), (Fraction(3, 5), Fraction(7, 10)), (Fraction(-1, 3),)
    truth = enumerated(Fraction(3, 4), trunk, left, right)
    rho_l, rho_m, rho_c = (
        hblt.path_polarity([float(rho) for rho in path]) for path in (left, right, trunk)
    )
    got = hblt.cooccurrence_of_paths(rho_l, rho_m, rho_c * 0.5)
    np.testing.assert_allclose(got, float(truth), rtol=EXACT)


def test_paths_and_equal_edges_agree():
    equal = hblt.cooccurrence(0.8, 0.6, levels=5, ancestor=2)
    paths = hblt.cooccurrence_of_paths(0.8**2, 0.8**2, 0.8**2 * 0.6)
    assert equal == pytest.approx(paths, rel=EXACT)


@pytest.mark.parametrize("ancestor", [1, 3])
def test_rho_0_as_printed_does_not_hold(ancestor):
    """E10: the theorem prints a probability where its proof has a polarity."""
    zero, prior = (np.array(c, dtype=float) for c in CLASSES)
    top_zero = sum(p * q for p, q in zip(*CLASSES, strict=True))
    truth = float(even_tree(top_zero, Fraction(4, 5), 4, ancestor))
    held, printed = (
        hblt.cooccurrence(
            0.8, hblt.root_polarity(zero, prior, form=form), levels=4, ancestor=ancestor
        )
        for form in ("corrected", "printed")
    )
    assert held == pytest.approx(truth, rel=EXACT)
    assert abs(printed - truth) > 0.03


@pytest.mark.parametrize("power", [3, 9, 12])
def test_small_epsilons_keep_their_digits(power):
    eps = Fraction(1, 10**power)
    truth = float(even_tree(1 - eps / 2, 1 - eps, 5, 2))
    got = hblt.cooccurrence_near_certain(float(eps), float(eps), levels=5, ancestor=2)
    assert got == pytest.approx(truth, rel=EXACT)


def test_naive_form_loses_the_digits_that_ours_keeps():
    rho = 1 - 1e-8
    naive = (1 + rho**4 - 2 * rho**5) / (1 - rho**5) / 2
    exact = float(even_tree((1 + Fraction(rho)) / 2, Fraction(rho), 5, 2))
    assert hblt.cooccurrence(rho, rho, levels=5, ancestor=2) == pytest.approx(exact, rel=EXACT)
    assert abs(naive - exact) > 1e-9


def remainder(eps, form):
    """Distance of Eqn. 8 from the exact value, in exact arithmetic."""
    exact = float(even_tree(1 - eps / 2, 1 - eps, 6, 1))
    return abs(hblt.near_certain_expansion(float(eps), levels=6, ancestor=1, form=form) - exact)


@pytest.mark.parametrize(("form", "order"), [("corrected", 2), ("printed", 1)])
def test_eqn8_remainder_is_of_second_order_only_when_corrected(form, order):
    """E11: the print claims O(eps²) and has O(eps)."""
    coarse, fine = (remainder(Fraction(1, n), form) for n in (100, 1000))
    assert np.log10(coarse / fine) == pytest.approx(order, abs=0.05)


@settings(max_examples=50, deadline=None)
@given(rho=st.floats(0.01, 0.999), half=st.integers(1, 6))
def test_midway_ancestor_makes_a_coin(rho, half):
    got = hblt.cooccurrence(rho, rho, levels=2 * half, ancestor=half)
    assert got == pytest.approx(0.5, rel=ROUNDING)


@settings(max_examples=100, deadline=None)
@given(rho=st.floats(-1, 1), rho_0=st.floats(-1, 1), levels=st.integers(1, 8), data=st.data())
def test_theorem5_gives_a_probability(rho, rho_0, levels, data):
    ancestor = data.draw(st.integers(0, levels - 1))
    p = hblt.cooccurrence(rho, rho_0, levels=levels, ancestor=ancestor)
    assert np.isnan(p) or -ROUNDING <= p <= 1 + ROUNDING


def test_undefined_if_the_condition_never_happens():
    assert np.isnan(hblt.cooccurrence(1.0, 1.0, levels=4, ancestor=1))
    assert np.isnan(hblt.cooccurrence_near_certain(0.0, 0.0, levels=4, ancestor=1))
    assert np.isnan(hblt.cooccurrence_of_paths(1.0, 1.0, 1.0))


@pytest.mark.parametrize("branching", [2, 3])
def test_sampled_trees_agree_with_theorem5(rng, branching):
    rho, rho_0, levels = 0.8, 0.6, 4
    leaves = hblt.sample_leaves(
        rng, 60_000, rho=rho, rho_0=rho_0, levels=levels, branching=branching
    )
    assert leaves.shape == (60_000, branching ** (levels - 1))
    given_first = leaves[leaves[:, 0]]
    for other in (1, branching, branching**2):
        ancestor = hblt.ancestor_level(0, other, branching)
        p = hblt.cooccurrence(rho, rho_0, levels=levels, ancestor=ancestor)
        error = np.sqrt(p * (1 - p) / len(given_first))
        assert abs(given_first[:, other].mean() - p) < 3 * error
    assert abs(leaves.mean() - (1 - rho_0 * rho ** (levels - 1)) / 2) < 0.005


def test_samples_are_set_by_the_generator():
    draw = [
        hblt.sample_leaves(np.random.default_rng(7), 20, rho=0.5, rho_0=0.0, levels=3)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*draw)


def test_an_ancestor_at_the_root_is_refused():
    """E21: two leaves under different children of a categorical root, exact 0.18, formula 0.82."""
    zero = np.array([[0.9, 0.1], [0.1, 0.9]])  # [child, class], classes equally likely
    exact = ((1 - zero[0]) * (1 - zero[1])).mean() / (1 - zero[1]).mean()
    formula = 1 - (1 - 0.8**2) / 2
    assert exact == pytest.approx(0.18)
    assert formula == pytest.approx(0.82)
    with pytest.raises(ValueError, match=r"H <= L - 1 = 0; got H = 1"):
        hblt.cooccurrence(0.8, 0.0, levels=1, ancestor=1)


def test_rejects_what_is_not_a_polarity():
    with pytest.raises(ValueError, match=r"rho = 1\.5"):
        hblt.cooccurrence(1.5, 0.0, levels=3, ancestor=1)
    with pytest.raises(ValueError, match=r"eps and eps_0 lie in \[0, 1\)"):
        hblt.cooccurrence_near_certain(-0.1, 0.1, levels=3, ancestor=1)
    with pytest.raises(ValueError, match=r"sum to 0\.9"):
        hblt.root_polarity(np.array([0.5, 0.5]), np.array([0.5, 0.4]))

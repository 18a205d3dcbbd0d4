"""Theorem 3, as printed and as it holds: pairs of roots of one level of a heavy-tailed mixture."""

import numpy as np

from joma.theory import critical_points
from joma.theory.projections import GaussianMixture

HEAVY = GaussianMixture((0.9, 0.1), (0.3, 3.0))
ROOTS = {"left": 0, "center": 1, "right": 2}


def chosen(level, pair):
    roots = critical_points.level_roots(level, HEAVY)
    return tuple(float(roots[ROOTS[word]]) for word in pair.split("-"))


def printed(level, pair):
    r_minus, r_plus = chosen(level, pair)
    point = critical_points.printed_point(
        r_minus, r_plus, np.array([1.5, 0.0, 0.0]), projection=HEAVY
    )
    beta_1, beta_2 = critical_points.betas(point)
    along = point.mu @ critical_points.printed_linearisation(point) @ point.mu / point.norm**2
    return {
        "r_minus": r_minus,
        "r_plus": r_plus,
        "a_minus": point.pair.a_minus,
        "mu_norm": point.norm,
        "beta1": beta_1,
        "beta2": beta_2,
        "eig_along_mu": along,
    }


def corrected(level, pair):
    point = critical_points.ray_point(
        *chosen(level, pair), np.array([1.0, 0.0, 0.0]), projection=HEAVY
    )
    rates = critical_points.eigenvalues(point)
    return {
        "X": np.linalg.norm(point.pair.centre),
        "eig_perp": rates.perpendicular,
        "eig_mu_fixed_xi": rates.along_mu,
        "eig_mu_joint": rates.joint,
    }


ADAPTERS = {"thm3.printed": printed, "thm3.corrected": corrected}

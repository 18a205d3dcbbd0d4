"""E7: Theorem 3 linearises the wrong flow, because it starts from Lemma 1 as printed."""

from collections.abc import Callable

import numpy as np

from joma._core.typing import Array
from joma.theory import critical_points, projections
from joma.theory.errata.base import Erratum, Evidence

HEAVY = projections.GaussianMixture((0.9, 0.1), (0.3, 3.0))
STRIDE = 0.02


def evidence() -> tuple[Evidence, ...]:
    """Curvature of E[g h], whose gradient is the flow, at a critical point with |mu| = 2.7."""
    _, centre, right = critical_points.level_roots(1.0, HEAVY).tolist()
    point = critical_points.ray_point(
        centre, right, np.array([1.0, 0.0, 0.0]), projection=HEAVY, norm=2.7
    )
    printed = critical_points.printed_linearisation(point)
    corrected = critical_points.linearisation(point)
    directions = {"along mu": np.eye(3)[0], "across mu": np.eye(3)[1]}
    return tuple(
        Evidence(
            quantity=f"rate {name}: d'C(mu)d, heavy-tailed mixture, |mu| = 2.7, xi held fixed",
            judge="second difference of E[g h] by quadrature",
            truth=-_curvature(lambda v: objective(point, v), point.mu, d),
            printed=float(d @ printed @ d),
            corrected=float(d @ corrected @ d),
            tolerance=1e-6,
        )
        for name, d in directions.items()
    )


def objective(point: critical_points.CriticalPoint, v: Array) -> float:
    """E[g h] = a_+ E[relu] over the cluster at the centre - a_- E[relu] over the one at 0."""
    pair, norm = point.pair, float(np.linalg.norm(v))

    def mean_relu(r: float) -> float:
        # v'x is r + |v| s with s from the unit projection; the ReLU opens at s = -r/|v|.
        kink = -r / norm
        edges = (kink, *(s for s in HEAVY.landmarks if s > kink))
        return projections.integral(lambda s: (r + norm * s) * HEAVY.density(s), edges)

    r_plus = float(v @ pair.centre) + point.xi
    return pair.a_plus * mean_relu(r_plus) - pair.a_minus * mean_relu(point.xi)


def _curvature(function: Callable[[Array], float], at: Array, direction: Array) -> float:
    """Second derivative from five points, exact up to the sixth power of the stride."""
    five = [function(at + k * STRIDE * direction) for k in (-2, -1, 0, 1, 2)]
    return float(np.dot([-1, 16, -30, 16, -1], five)) / (12 * STRIDE**2)


ERRATUM = Erratum(
    number=7,
    where="Theorem 3, Eqn. 70-74",
    printed="C = beta_1 I + beta_2 mu mu', beta_1 = s a_+ X theta_1(r_+)/m^2",
    corrected=(
        "C = (s a_+ theta_1(rho_+) X/m)(I - mu mu'/m^2)"
        " + (xi^2/m^5)(a_- p_n(rho_-) - a_+ p_n(rho_+)) mu mu'"
    ),
    evidence=evidence,
)

"""E6: Theorem 3 multiplies by the sign of mu twice, and calls an unstable point stable."""

import numpy as np

from joma._core.typing import Array
from joma.theory import critical_points
from joma.theory.errata.base import Erratum, Evidence
from joma.theory.projections import GaussianMixture

HEAVY = GaussianMixture((0.9, 0.1), (0.3, 3.0))
STRIDE = 1e-5


def evidence() -> tuple[Evidence, ...]:
    """Differentiate the printed flow at its own critical point, with r_+ left of r_-."""
    _, centre, right = critical_points.level_roots(1.25, HEAVY).tolist()
    point = critical_points.printed_point(
        right, centre, np.array([1.5, 0.0, 0.0, 0.0]), projection=HEAVY
    )
    truth = np.linalg.eigvals(-jacobian(point)).real
    printed = np.linalg.eigvalsh(critical_points.printed_linearisation(point, form="printed"))
    corrected = np.linalg.eigvalsh(critical_points.printed_linearisation(point))
    setting = f"heavy-tailed mixture, r_- = {right:.4f}, r_+ = {centre:.4f}"
    return tuple(
        Evidence(
            quantity=f"{name} eigenvalue of C(mu), {setting}",
            judge="finite-difference Jacobian of the printed flow",
            truth=float(pick(truth)),
            printed=float(pick(printed)),
            corrected=float(pick(corrected)),
            tolerance=1e-7,
        )
        for name, pick in (("smallest", np.min), ("largest", np.max))
    )


def jacobian(point: critical_points.CriticalPoint) -> Array:
    """Columns d v'/d v_j of the printed flow, xi held fixed."""

    def flow(v: Array) -> Array:
        return point.pair.velocity(v, point.xi, form="printed").v

    steps = STRIDE * np.eye(len(point.mu))
    columns = [(flow(point.mu + e) - flow(point.mu - e)) / (2 * STRIDE) for e in steps]
    return np.stack(columns, axis=1)


ERRATUM = Erratum(
    number=6,
    where="Theorem 3",
    printed="C = s_mu (beta_1 I + beta_2 mu mu'), with s_mu also inside beta_1 and beta_2",
    corrected="C = beta_1 I + beta_2 mu mu', s_mu counted once (Eqn. 72-74)",
    evidence=evidence,
)

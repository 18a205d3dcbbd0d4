"""Theorem 4's threshold on delta_k has the wrong sign and a missing 1/2 in its exponent."""

import numpy as np
from scipy.integrate import solve_ivp

from joma._core.typing import Array, Form
from joma.theory import convergence
from joma.theory.errata.base import Erratum, Evidence

CASES = ((3.0, 2.0, 4.6), (2.0, 1.0, 3.0))  # mu_j, mu_k, ln(1 / delta_k)


def evidence() -> tuple[Evidence, ...]:
    """The deviation that each threshold calls small, at a delta_k below the printed one."""
    return tuple(
        Evidence(
            quantity=(
                f"Lambda at mu_j = {mu_j:g}, mu_k = {mu_k:g}, delta_k = {np.exp(-end):.2g}"
                f" (printed threshold {convergence.threshold(mu_k, form='printed'):.2g},"
                f" corrected {convergence.threshold(mu_k):.2g})"
            ),
            judge="Eqn. 6 of both tokens in ln(1 / delta), DOP853",
            truth=_simulated(mu_j, mu_k, end),
            printed=_deviation(mu_j, mu_k, end, "printed"),
            corrected=_deviation(mu_j, mu_k, end, "corrected"),
            tolerance=1e-9,
        )
        for mu_j, mu_k, end in CASES
    )


def _simulated(mu_j: float, mu_k: float, end: float) -> float:
    def slope(progress_k: float, progress_j: Array) -> Array:
        v_j, v_k = mu_j * np.expm1(-progress_j), mu_k * np.expm1(-progress_k)
        return np.asarray(np.exp((v_j**2 - v_k**2) / 2))

    path = solve_ivp(slope, (0.0, end), [0.0], "DOP853", rtol=1e-12, atol=1e-13)
    return float(path.y[0, -1] / end / np.exp((mu_j**2 - mu_k**2) / 2) - 1)


def _deviation(mu_j: float, mu_k: float, end: float, form: Form) -> float:
    return float(convergence.deviation(np.array([end]), mu_j, mu_k, form=form)[0])


ERRATUM = Erratum(
    number=8,
    where="Theorem 4, threshold on delta_k",
    printed="|Lambda| << 1 when delta_k << exp(-(sqrt(2 pi) + 2) exp(-mu_k^2))",
    corrected="|Lambda| << 1 when delta_k << exp(-(sqrt(2 pi) + 2) exp(+mu_k^2 / 2))",
    evidence=evidence,
)

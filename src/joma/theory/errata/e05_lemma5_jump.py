"""E5: the slope of theta_1 is the jump of the gate, not the sum of its two values."""

import numpy as np
from scipy.integrate import quad

from joma.theory import clusters
from joma.theory.errata.base import Erratum, Evidence

R, STRIDE = 0.4, 1e-4
GATES = {
    "leaky ReLU, c_- = 0.1": clusters.Step(0.1, 1.0),
    "linear, c_- = 1": clusters.Step(1.0, 1.0),
    "|x|, c_- = -1": clusters.Step(-1.0, 1.0),
}


def evidence() -> tuple[Evidence, ...]:
    """Integrate theta_1 and theta_2 on both sides of r = 0.4 and take the difference quotient."""
    found = []
    for name, step in GATES.items():
        printed = clusters.theta_slopes(np.array([R]), step=step, form="printed")
        corrected = clusters.theta_slopes(np.array([R]), step=step)
        for power in (0, 1):
            rise = _theta(power, R + STRIDE, step) - _theta(power, R - STRIDE, step)
            found.append(
                Evidence(
                    quantity=f"theta_{power + 1}'(0.4), normal clusters, {name}",
                    judge="central difference of a quadrature",
                    truth=rise / (2 * STRIDE),
                    printed=float(printed[power][0]),
                    corrected=float(corrected[power][0]),
                    tolerance=1e-7,
                )
            )
    return tuple(found)


def _theta(power: int, r: float, step: clusters.Step) -> float:
    def moment(s: float) -> float:
        return float(s**power * np.exp(-(s**2) / 2) / np.sqrt(2 * np.pi))

    below, above = quad(moment, -12, -r, epsabs=1e-13)[0], quad(moment, -r, 12, epsabs=1e-13)[0]
    return float(step.c_minus * below + step.c_plus * above)


ERRATUM = Erratum(
    number=5,
    where="Lemma 5, Eqn. 61",
    printed=(
        "theta_1' = (c_- + c_+) p_n(r), theta_2' = -(c_- + c_+) r p_n(r),"
        " where phi(x) = c_- 1[x<0] + c_+ 1[x>0]"
    ),
    corrected=(
        "theta_1' = (c_+ - c_-) p_n(r), theta_2' = -(c_+ - c_-) r p_n(r),"
        " where phi'(x) = c_- 1[x<0] + c_+ 1[x>0]"
    ),
    evidence=evidence,
)

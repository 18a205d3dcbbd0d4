"""The text after Eqn. 88 drops the 1/2 in the exponent of the leading term."""

import numpy as np
from scipy.integrate import quad

from joma.theory.convergence import remainder_bound
from joma.theory.errata.base import Erratum, Evidence

MU = 2.0
FAR = 1e4


def evidence() -> tuple[Evidence, ...]:
    """The leading term against the integral that it should follow."""
    printed, corrected = float(np.exp(-(MU**2))), float(np.exp(-(MU**2) / 2))
    return (
        Evidence(
            quantity="growth of F per unit of ln 1/(1 - r) near r = 1, mu = 2",
            judge="difference of two quadratures of Eqn. 79",
            truth=(_time(40.0) - _time(30.0)) / 10,
            printed=printed,
            corrected=corrected,
            tolerance=1e-9,
        ),
        Evidence(
            quantity="F at ln 1/(1 - r) = 10^4, mu = 2, from its leading term",
            judge="quadrature of Eqn. 79; the tolerance is the paper's bound on the difference",
            truth=_time(FAR),
            printed=printed * FAR,
            corrected=corrected * FAR,
            tolerance=remainder_bound(form="printed"),
        ),
    )


def _time(progress: float) -> float:
    """F of Eqn. 79 in the variable ln 1/(1 - x); beyond 50 its integrand is constant."""

    def integrand(s: float) -> float:
        return float(np.exp(-0.5 * (MU * np.expm1(-s)) ** 2))

    near, _ = quad(integrand, 0.0, min(progress, 50.0), epsabs=1e-12, epsrel=1e-12, limit=200)
    return float(near + integrand(50.0) * max(progress - 50.0, 0.0))


ERRATUM = Erratum(
    number=9,
    where="Text after Eqn. 88, three places",
    printed="F(r, mu) -> e^(-mu^2) ln 1/(1 - r), rho = F - e^(-mu^2) ln 1/(1 - r) in (0, 2.2533)",
    corrected="e^(-mu^2 / 2) in place of e^(-mu^2)",
    evidence=evidence,
)

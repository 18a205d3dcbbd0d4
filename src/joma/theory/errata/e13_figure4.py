"""Figure 4 does not plot what its caption says."""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import entr, softmax

from joma._core.typing import Array
from joma.theory import nonlinear, normalised
from joma.theory.errata.base import Erratum, Evidence


def evidence() -> tuple[Evidence, ...]:
    """The rebound with either softmax, and the salient weight with either dynamics."""
    corrected = normalised.entropy_curve()
    printed = normalised.entropy_curve(form="printed")
    return (
        Evidence(
            quantity="rebound of the entropy in 5000 steps: last value minus smallest",
            judge="the dynamics of the authors' script, DOP853; the tolerance is the Euler error",
            truth=_rebound(),
            printed=float(printed[-1] - printed.min()),
            corrected=float(corrected[-1] - corrected.min()),
            tolerance=2e-3,
        ),
        Evidence(
            quantity="most salient weight after 5000 Euler steps of 0.02",
            judge="Eqn. 6 at t = 100, LSODA",
            truth=float(nonlinear.simulate(np.array([100.0]), normalised.MU)[0, -1]),
            printed=float(_euler_of_eqn6()[-1]),
            corrected=float(normalised.euler()[-1, -1]),
            tolerance=1e-6,
        ),
    )


def _rebound() -> float:
    mu = normalised.MU

    def rates(_: float, v: Array) -> Array:
        return np.asarray((mu - v) * softmax(v**2 / 3))

    times = np.arange(normalised.STEPS) * normalised.ETA
    start = np.full(len(mu), normalised.V0)
    path = solve_ivp(rates, (0.0, times[-1]), start, "DOP853", t_eval=times, rtol=1e-9, atol=1e-12)
    entropy = entr(softmax(path.y**2 / 3, axis=0)).sum(0)
    return float(entropy[-1] - entropy.min())


def _euler_of_eqn6() -> Array:
    v = np.full(len(normalised.MU), normalised.V0)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(normalised.STEPS):
            v = v + normalised.ETA * nonlinear.velocity(v, normalised.MU)
    return v


ERRATUM = Erratum(
    number=13,
    where="Figure 4 and its caption",
    printed="Eqn. 6; entropy(softmax(v^2))",
    corrected="dv/dt = (mu - v) o softmax(v^2 / 3); entropy(softmax(v^2 / 3))",
    evidence=evidence,
)

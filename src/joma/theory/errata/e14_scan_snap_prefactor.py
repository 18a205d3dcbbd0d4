"""E14: the slide's Theorem 4 of Scan&Snap lacks a factor 1/4."""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import softmax

from joma._core.typing import Array
from joma.theory import scan_snap
from joma.theory.errata.base import Erratum, Evidence

DECODER = scan_snap.Decoder(vocabulary=50, classes=4, rate=1.0)
RATE = 0.5
TIMES = np.array([20.0, 500.0])


def evidence() -> tuple[Evidence, ...]:
    """Integrate the decoder's logits and the common token's, and read off B."""
    printed = scan_snap.pull(TIMES, DECODER, rate=RATE, form="printed")
    corrected = scan_snap.pull(TIMES, DECODER, rate=RATE)
    return tuple(
        Evidence(
            quantity=f"B at t = {t:g}, M = 50, K = 4, eta_Y = 1, eta_Z = 0.5, C_0 = 1",
            judge="DOP853 on the decoder logits and z, rtol 1e-10",
            truth=float(b),
            printed=float(p),
            corrected=float(c),
            tolerance=1e-7,
        )
        for t, b, p, c in zip(TIMES, integrated(), printed, corrected, strict=True)
    )


def integrated() -> Array:
    """B at `TIMES` from the softmax decoder and the premise xi = gamma exp(4 z)."""
    right = np.eye(DECODER.vocabulary)[0]

    def flow(_: float, state: Array) -> Array:
        logits, z = state[:-1], state[-1]
        u = logits[0] - logits[1]
        wrong = 1 - softmax(logits)[0]
        # gamma = (M-1) u / (e^u + M - 1), which is u times the probability of a wrong output
        dz = -RATE * u * wrong * np.exp(4 * z)
        return np.append(DECODER.rate / DECODER.classes * (right - softmax(logits)), dz)

    start = np.zeros(DECODER.vocabulary + 1)
    result = solve_ivp(
        flow, (0.0, TIMES[-1]), start, t_eval=TIMES, method="DOP853", rtol=1e-10, atol=1e-12
    )
    return np.asarray(-result.y[-1])


ERRATUM = Erratum(
    number=14,
    where="Scan&Snap Theorem 4 on the slides",
    printed="B = ln(C_0 + 2K (eta_Z/eta_Y) ln^2(M eta_Y t/K))",
    corrected="B = 1/4 ln(1 + (4 eta_Z/C_0) K(M-1)/(2M eta_Y) u(t)^2)",
    evidence=evidence,
)

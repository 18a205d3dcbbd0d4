"""Theorem 2's invariant has the wrong width in the error function."""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import erfinv

from joma._core.typing import Array
from joma.theory import linear
from joma.theory.errata.base import Erratum, Evidence

SAMPLES, TOKENS = 50, 6
NORMALISER = 1.7
END = 16.0  # the winner diverges at 16.9


def evidence() -> tuple[Evidence, ...]:
    """Two losing tokens, found from the winner by each form of the invariant."""
    delta, v = _trained_layer()
    winner = int(np.abs(v).argmax())
    losers = np.argsort(np.abs(v))[-3:-1]
    printed = linear.invariant(v, delta, form="printed")
    corrected = linear.invariant(v, delta)
    return tuple(
        Evidence(
            quantity=f"v of token {loser} at t = {END:g}, from that of token {winner} by Eqn. 4",
            judge="gradient flow of v and z of a random layer, DOP853",
            truth=float(v[loser]),
            printed=float(2 * erfinv(printed[winner] * delta[loser])),
            corrected=float(np.sqrt(2) * erfinv(corrected[winner] * delta[loser])),
            tolerance=1e-8,
        )
        for loser in losers
    )


def _trained_layer() -> tuple[Array, Array]:
    """Saliencies and weights of Eqn. 1 with K = 1 after training by Eqn. 2, `z` on its own."""
    rng = np.random.default_rng(3)
    x = rng.random((SAMPLES, TOKENS))
    g = rng.standard_normal(SAMPLES) + 0.3

    def flow(_: float, state: Array) -> Array:
        v, z = state.reshape(2, TOKENS)
        b = np.exp(z) * x / NORMALISER
        return np.concatenate([g @ b, g @ (b * v)]) / SAMPLES

    end = solve_ivp(flow, (0.0, END), np.zeros(2 * TOKENS), "DOP853", rtol=1e-11, atol=1e-13)
    return g @ x / SAMPLES, end.y[:TOKENS, -1]


ERRATUM = Erratum(
    number=2,
    where="Theorem 2, Eqn. 4 and 22, and the slides",
    printed="erf(v_l / 2) / Delta_l is the same for all tokens l",
    corrected="erf(v_l / sqrt(2)) / Delta_l is the same for all tokens l",
    evidence=evidence,
)

"""With several hidden nodes, the slide sums exponentials where the exponents must be summed."""

import numpy as np
from scipy.integrate import solve_ivp

from joma._core.typing import Array, Form
from joma.theory import low_rank
from joma.theory.errata.base import Erratum, Evidence

TOKENS, HIDDEN = 8, 5
NORMALISER = 1.3
END = 0.1  # a sixth of the time to the blow-up


def evidence() -> tuple[Evidence, ...]:
    """Speed and place of one weight, against the flow of V and z."""
    delta = np.random.default_rng(0).standard_normal((TOKENS, HIDDEN))
    v, z = _flow(delta)
    speed = np.exp(z)[:, None] * delta / NORMALISER
    row, column = np.unravel_index(np.abs(speed).argmax(), speed.shape)
    judge = "gradient flow of V and z, one token per sample, DOP853"

    def velocity(form: Form) -> float:
        return float(low_rank.velocity(v, delta, normaliser=NORMALISER, form=form)[row, column])

    exact = low_rank.solution(np.array([END]), delta, normaliser=NORMALISER)[0]
    return (
        Evidence(
            quantity=f"fastest dV/dt at t = {END:g}, K = {HIDDEN}",
            judge=judge,
            truth=float(speed[row, column]),
            printed=velocity("printed"),
            corrected=velocity("corrected"),
            tolerance=1e-8,
        ),
        Evidence(
            quantity=f"the same weight at t = {END:g}",
            judge=judge,
            truth=float(v[row, column]),
            printed=float(_printed_path(delta)[row, column]),
            corrected=float(exact[row, column]),
            tolerance=1e-8,
        ),
    )


def _flow(delta: Array) -> tuple[Array, Array]:
    """Eqn. 2 from rest with `z` on its own, so neither form of the exponent enters."""

    def rates(_: float, state: Array) -> Array:
        v, z = state[: delta.size].reshape(delta.shape), state[delta.size :]
        dv = np.exp(z)[:, None] * delta / NORMALISER
        return np.concatenate([dv.ravel(), (dv * v).sum(1)])

    start = np.zeros(delta.size + TOKENS)
    end = solve_ivp(rates, (0.0, END), start, "DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    return end[: delta.size].reshape(delta.shape), end[delta.size :]


def _printed_path(delta: Array) -> Array:
    def rates(_: float, state: Array) -> Array:
        v = state.reshape(delta.shape)
        return low_rank.velocity(v, delta, normaliser=NORMALISER, form="printed").ravel()

    end = solve_ivp(rates, (0.0, END), np.zeros(delta.size), "DOP853", rtol=1e-9, atol=1e-12)
    return np.asarray(end.y[:, -1].reshape(delta.shape))


ERRATUM = Erratum(
    number=12,
    where="Slides, dynamics with K > 1 hidden nodes",
    printed="dV/dt = diag(exp(V o V / 2) 1) Delta / A",
    corrected="dV/dt = diag(exp((V o V) 1 / 2)) Delta / A",
    evidence=evidence,
)

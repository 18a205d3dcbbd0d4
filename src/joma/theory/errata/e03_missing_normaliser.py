"""E3: Eqn. 3 forgot the normaliser that Eqn. 1 puts under the attention."""

import numpy as np
from scipy.special import erfinv

from joma._core.typing import Array
from joma.theory import flow
from joma.theory.errata.base import Erratum, Evidence
from joma.theory.saliency import saliency

A = 1.7


def evidence() -> tuple[Evidence, ...]:
    """The velocity at one state, and the weight it leads to."""
    rng = np.random.default_rng(0)
    x, g = rng.random((30, 6)), rng.standard_normal((30, 1)) + 0.3
    layer = flow.Layer(x=x, signal=flow.stationary(g), normaliser=A)
    delta = saliency(g, x)[:, 0]
    winner = int(np.abs(delta).argmax())
    return _velocity(layer, delta, winner), _weight(layer, delta, winner)


def _velocity(layer: flow.Layer, delta: Array, winner: int) -> Evidence:
    z = np.linspace(-0.4, 0.4, len(delta))
    W_dot, _ = flow.velocity(layer, np.zeros((len(delta) + 1, 1)), z)
    rate = float(delta[winner] * np.exp(z[winner]))
    return Evidence(
        quantity=f"dv/dt of the most salient of 6 tokens; 30 random samples, A = {A}",
        judge="Eqn. 2 of the full model",
        truth=float(layer.context(W_dot)[winner, 0]),
        printed=rate,
        corrected=rate / A,
        tolerance=1e-12,
    )


def _weight(layer: flow.Layer, delta: Array, winner: int) -> Evidence:
    time = 0.5 * np.sqrt(np.pi / 2) / float(np.abs(delta).max())
    run = flow.integrate(
        layer, np.zeros((len(delta) + 1, 1)), np.zeros(len(delta)), np.array([time])
    )
    # Eqn. 3 solved from zero: v = sqrt2 erfinv(sqrt(2/pi) Delta t), with t / A for t if corrected.
    reach = np.sqrt(2 / np.pi) * delta[winner] * time
    return Evidence(
        quantity=f"v of the same token at half the printed blow-up time, from zero; A = {A}",
        judge="DOP853 on Eqn. 2 of the full model",
        truth=float(run.v[0, winner, 0]),
        printed=float(np.sqrt(2) * erfinv(reach)),
        corrected=float(np.sqrt(2) * erfinv(reach / A)),
        tolerance=1e-9,
    )


ERRATUM = Erratum(
    number=3,
    where="Eqn. 3",
    printed="v' = Delta o exp(z)",
    corrected="v' = Delta o exp(z) / A",
    evidence=evidence,
)

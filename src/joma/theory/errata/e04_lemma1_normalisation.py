"""E4: Lemma 1 divides by |v| twice too often, and calls what depends on |v| independent of it."""

import numpy as np

from joma._core.typing import Array
from joma.theory import clusters
from joma.theory.errata.base import Erratum, Evidence

SAMPLES = 400_000
JUDGE = f"Monte-Carlo, {SAMPLES} samples, 3 standard errors"
CENTRE, XI = np.array([0.6, -0.3, 0.4]), 0.3
PLANE = np.eye(3)[:, :2]  # a cluster that is flat in the third direction


def evidence() -> tuple[Evidence, ...]:
    """Average the gate and the input over drawn samples, and compare."""
    rng = np.random.default_rng(4)
    x = CENTRE + rng.standard_normal((SAMPLES, 3))
    flat = x * [1.0, 1.0, 0.0] + CENTRE * [0.0, 0.0, 1.0]
    unit = np.array([0.8, 0.6, 0.0])
    return (
        _gate("E[psi], ReLU, |v| = 0.4", x, 0.4 * unit, None),
        _gate("E[psi], ReLU, |v| = 2.5", x, 2.5 * unit, None),
        _gate("E[psi], flat cluster, |v| = 1.414, |RR'v| = 1", flat, unit + np.eye(3)[2], PLANE),
        _velocity(rng, 3 * unit),
    )


def _gate(quantity: str, x: Array, v: Array, basis: Array | None) -> Evidence:
    gate = x @ v + XI > 0
    printed = clusters.cluster_means(v, XI, CENTRE, basis=basis, form="printed")
    corrected = clusters.cluster_means(v, XI, CENTRE, basis=basis)
    return Evidence(
        quantity=quantity,
        judge=JUDGE,
        truth=float(gate.mean()),
        printed=printed.psi,
        corrected=corrected.psi,
        tolerance=3 * float(gate.std()) / SAMPLES**0.5,
    )


def _velocity(rng: np.random.Generator, v: Array) -> Evidence:
    """First component of Lemma 2: clusters at (1.2, 0, 0) and 0 of strengths 0.5 and -0.7."""
    centres, strengths, xi = (
        np.array([[1.2, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        np.array([0.5, -0.7]),
        -0.4,
    )
    x = centres[:, None] + rng.standard_normal((2, SAMPLES, 3))  # [clusters, samples, tokens]
    pushed = strengths[:, None] * x[..., 0] * (x @ v + xi > 0)
    return Evidence(
        quantity="first component of v' with two clusters (Lemma 2), |v| = 3",
        judge=JUDGE,
        truth=float(pushed.mean(1).sum()),
        printed=float(clusters.velocity(v, xi, centres, strengths, form="printed").v[0]),
        corrected=float(clusters.velocity(v, xi, centres, strengths).v[0]),
        tolerance=3 * float(np.sqrt(pushed.var(1).sum() / SAMPLES)),
    )


ERRATUM = Erratum(
    number=4,
    where="Lemma 1, Lemma 2, Eqn. 23, 32-43, 50",
    printed="E[psi] = theta_1(r)/|v|, E[x psi] = theta_1(r)/|v| xbar + theta_2(r)/|v|^3 RR'v",
    corrected=(
        "E[psi] = theta_1(rho), E[x psi] = theta_1(rho) xbar + theta_2(rho) v_R/|v_R|,"
        " v_R = RR'v, rho = r/|v_R|"
    ),
    evidence=evidence,
)

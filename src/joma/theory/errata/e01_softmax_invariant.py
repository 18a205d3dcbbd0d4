"""E1: the softmax case of Theorem 1 lost a minus sign."""

import numpy as np

from joma.theory import flow, invariants
from joma.theory.errata.base import Erratum, Evidence


def evidence() -> tuple[Evidence, ...]:
    """The rate of one logit where the theorem's assumption is exact; the sum of logits in a run."""
    return _rate_of_a_logit(), _sum_of_logits()


def _rate_of_a_logit() -> Evidence:
    rng = np.random.default_rng(0)
    layer = flow.Layer(
        x=np.repeat(rng.random((1, 6)), 8, axis=0),
        signal=flow.stationary(rng.standard_normal((8, 4))),
        attention="softmax",
        activation="relu",
    )
    W, z = rng.standard_normal((7, 4)), 0.3 * rng.standard_normal(6)
    W_dot, z_dot = flow.velocity(layer, W, z)
    v, v_dot, mean = layer.context(W), layer.context(W_dot), flow.mean_scores(layer, z)
    token = int(np.abs(z_dot).argmax())
    return Evidence(
        quantity="dz/dt of the fastest logit; 6 tokens, 4 ReLU nodes, all samples share one x",
        judge="Eqn. 2 of the full model",
        truth=float(z_dot[token]),
        printed=float(invariants.softmax_velocity(v, v_dot, mean, form="printed")[token]),
        corrected=float(invariants.softmax_velocity(v, v_dot, mean)[token]),
        tolerance=1e-12,
    )


def _sum_of_logits() -> Evidence:
    rng = np.random.default_rng(1)
    layer = flow.Layer(
        x=rng.dirichlet(np.ones(6), 8),
        signal=flow.cross_entropy(np.arange(8) % 4, 4),
        attention="softmax",
    )
    W, z = 0.1 * rng.standard_normal((7, 4)), 0.1 * rng.standard_normal(6)
    run = flow.integrate(layer, W, z, np.array([0.0, 20.0]))
    mean = flow.mean_scores(layer, z)
    sums = {
        form: invariants.predicted_logits(
            run.v, attention="softmax", mean_attention=mean, form=form
        ).sum(1)
        for form in ("printed", "corrected")
    }
    return Evidence(
        quantity="change of the sum of z over time 20; 6 tokens, 8 samples, cross-entropy",
        judge="DOP853 on Eqn. 2 of the full model",
        truth=float(run.z[1].sum() - run.z[0].sum()),
        printed=float(sums["printed"][1] - sums["printed"][0]),
        corrected=float(sums["corrected"][1] - sums["corrected"][0]),
        tolerance=1e-9,
    )


ERRATUM = Erratum(
    number=1,
    where="Theorem 1, softmax attention",
    printed="z_m = 1/2 sum_k v_k^2 ||v_k||^2 bbar_m + c",
    corrected="z_m = 1/2 sum_k (v_k^2 - ||v_k||^2 bbar_m) + c",
    evidence=evidence,
)

"""Theorem 1 under discrete SGD."""

import numpy as np

from joma.theory import drift, flow, invariants


def sgd(eta, steps, Delta, A):
    """One token that occurs in every sample, a constant signal: dv = eta Delta e^z / A."""
    layer = flow.Layer(
        x=np.ones((1, 1)), signal=flow.stationary(np.full((1, 1), Delta)), normaliser=A
    )
    run = flow.descend(layer, np.zeros((2, 1)), np.zeros(1), np.full(steps, eta))
    return {
        "v": run.v[-1].item(),
        "z": run.z[-1].item(),
        "defect": invariants.conserved(run.z[-1], run.v[-1]).item(),
        "minus_half_qv": drift.sgd_defect(run.v)[-1].item(),
    }


ADAPTERS = {"thm1.sgd": sgd}

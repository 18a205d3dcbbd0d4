"""Lemmas 1, 4 (Eqn. 58) and 5."""

import numpy as np

from joma.theory import clusters
from joma.theory.projections import NORMAL, GaussianMixture, Laplace, Uniform, heaviness


def gauss_relu(r):
    rho = np.array([r])
    theta_1, theta_2 = clusters.thetas(rho)
    return {"theta1": theta_1[0], "theta2": theta_2[0], "F": clusters.mean_activation(rho)[0]}


def leaky(r, c_minus, c_plus):
    rho, step = np.array([r]), clusters.Step(c_minus, c_plus)
    theta_1, theta_2 = clusters.thetas(rho, step=step)
    slope_1, slope_2 = clusters.theta_slopes(rho, step=step)
    return {
        "theta1": theta_1[0],
        "theta2": theta_2[0],
        "dtheta1": slope_1[0],
        "dtheta2": slope_2[0],
        "F": clusters.mean_activation(rho, step=step)[0],
    }


def corrected(v, xbar, xi):
    held = clusters.cluster_means(v, xi, xbar)
    printed = clusters.cluster_means(v, xi, xbar, form="printed")
    return {"E_x_psi": held.x_psi, "E_psi": held.psi, "printed_E_psi": printed.psi}


def eqn58(mixture):
    mixed = GaussianMixture(tuple(mixture["w"].tolist()), tuple(mixture["sigma"].tolist()))
    family = {"normal": NORMAL, "uniform": Uniform(), "laplace": Laplace(), "mixture": mixed}
    return {name: heaviness(projection) for name, projection in family.items()}


ADAPTERS = {
    "lemma1.gauss_relu": gauss_relu,
    "lemma1.corrected": corrected,
    "lemma5.leaky": leaky,
    "lemma4.eqn58": eqn58,
}

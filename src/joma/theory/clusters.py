r"""Lemmas 1, 2, 3 and 5: what a nonlinear node learns from isotropic clusters (attention frozen).

A cluster is $x = \bar x + x'$ with $x'$ isotropic. Its unit projections all have the same even
density $p_n$, and a node $h = \phi(v^\top x + \xi)$ sees nothing else of it. The node's gate is
$\psi = \phi'$; for ReLU-like activations it is a step, and everything here has a closed form in
$\rho = (v^\top \bar x + \xi)/\|v\|$, the signed distance of the centre from the node's boundary.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array, Form, ScalarFunction
from joma.theory.projections import NORMAL, AbstractProjection, integral

PAPER = {
    "Lemma 1": "cluster_means",
    "Lemma 2": "velocity",
    "Lemma 3": "mean_activation",
    "Lemma 5": "theta_slopes",
}


@dataclass(frozen=True)
class Step:
    r"""Gate $\psi = \phi'$ of $\phi(x) = c_\mp x$: `Step()` for ReLU, `Step(0.1)` for a leaky."""

    c_minus: float = 0.0
    c_plus: float = 1.0

    def __call__(self, x: Array) -> Array:
        return np.where(x > 0, self.c_plus, self.c_minus)

    @property
    def jump(self) -> float:
        return self.c_plus - self.c_minus


RELU = Step()


class Thetas(NamedTuple):
    r"""$\theta_j = \int s^{j-1} \psi(s + \rho)\,p_n(s)\,ds$ of Lemma 1."""

    theta_1: Float[Array, " clusters"]
    theta_2: Float[Array, " clusters"]


def thetas(
    rho: Float[Array, " clusters"], projection: AbstractProjection = NORMAL, step: Step = RELU
) -> Thetas:
    r"""$\theta_1(\rho)$ and $\theta_2(\rho)$ of a step gate, in closed form."""
    return Thetas(
        step.c_minus + step.jump * projection.cdf(rho), step.jump * projection.upper_moment(rho)
    )


def thetas_by_quadrature(
    psi: ScalarFunction, r: float, *, norm: float = 1.0, projection: AbstractProjection = NORMAL
) -> tuple[float, float]:
    r"""$\int s^{j-1} \psi(\|v\| s + r)\,p_n(s)\,ds$ for any gate, $j = 1, 2$.

    They depend on `norm`, $\|v\|$, and on $r$ separately: only a step gate sees just the ratio.
    """
    kink = -r / norm
    inside = [s for s in (*projection.landmarks, kink) if abs(s) <= projection.landmarks[-1]]
    edges = tuple(sorted(inside))

    def gated(s: Array) -> Array:
        return psi(norm * s + r) * projection.density(s)

    return integral(gated, edges), integral(lambda s: s * gated(s), edges)


class ClusterMeans(NamedTuple):
    """Lemma 1's two averages over one cluster."""

    psi: float
    r"""$\mathbb E[\psi(v^\top x + \xi)]$."""
    x_psi: Float[Array, " tokens"]
    r"""$\mathbb E[x\,\psi(v^\top x + \xi)]$."""


def cluster_means(
    v: Float[Array, " tokens"],
    xi: float,
    centre: Float[Array, " tokens"],
    *,
    projection: AbstractProjection = NORMAL,
    psi: ScalarFunction = RELU,
    basis: Float[Array, "tokens embed"] | None = None,
    form: Form = "corrected",
) -> ClusterMeans:
    r"""$\mathbb E[\psi]$ and $\mathbb E[x\psi]$ over one cluster (Lemma 1).

    They are $\theta_1$ and $\theta_1 \bar x + \theta_2\, v_R/\|v_R\|$ at
    $\rho = (v^\top\bar x + \xi)/\|v_R\|$, where $v_R$ is the part of $v$ inside the cluster's
    subspace. The print divides by $\|v\|$ and $\|v\|^3$ instead and evaluates $\theta$ at
    $v^\top\bar x + \xi$: a probability above 1 for small $\|v\|$ (E4).

    Args:
        v: Weights of the node on the context tokens.
        xi: Its bias, the share of the query token.
        centre: Cluster centre $\bar x$.
        projection: Density of a unit projection of the cluster.
        psi: Gate $\phi'$. A `Step` uses closed forms, any other function quadrature.
        basis: Orthonormal columns spanning the cluster's subspace, $R$. Default: all of space.
        form: `"printed"` evaluates the lemma as the paper prints it.
    """
    inside = v if basis is None else basis @ (basis.T @ v)
    norm = float(np.linalg.norm(inside))
    if norm == 0.0:
        raise ValueError("v must have a part inside the cluster's subspace; got R R^T v = 0.")
    r = float(v @ centre + xi)
    if form == "corrected":
        theta_1, theta_2 = _thetas_at(psi, r, norm, projection)
        return ClusterMeans(theta_1, theta_1 * centre + theta_2 * inside / norm)
    theta_1, theta_2 = _thetas_at(psi, r, 1.0, projection)
    length = float(np.linalg.norm(v))
    x_psi = theta_1 / length * centre + theta_2 / length**3 * inside
    return ClusterMeans(theta_1 / length, x_psi)


def _thetas_at(
    psi: ScalarFunction, r: float, norm: float, projection: AbstractProjection
) -> tuple[float, float]:
    if not isinstance(psi, Step):
        return thetas_by_quadrature(psi, r, norm=norm, projection=projection)
    theta_1, theta_2 = thetas(np.array([r / norm]), projection, psi)
    return float(theta_1[0]), float(theta_2[0])


class Velocity(NamedTuple):
    """Time derivatives of a node's context weights and of its bias."""

    v: Float[Array, " tokens"]
    xi: float


def velocity(
    v: Float[Array, " tokens"],
    xi: float,
    centres: Float[Array, "clusters tokens"],
    strengths: Float[Array, " clusters"],
    *,
    projection: AbstractProjection = NORMAL,
    step: Step = RELU,
    form: Form = "corrected",
) -> Velocity:
    r"""$(\dot v, \dot\xi)$ of a node that sees several clusters (Lemma 2, Eqn. 42).

    $\dot v = \sum_j a_j(\theta_1(\rho_j)\,\bar x_j + \theta_2(\rho_j)\,v/\|v\|)$,
    $\dot\xi = \sum_j a_j \theta_1(\rho_j)$. It depends on the direction of $(v, \xi)$ only, not on
    its length; the print, which inherits E4, does not have that property.

    Args:
        v: Weights of the node, not zero.
        xi: Bias of the node.
        centres: One centre $\bar x_j$ per row.
        strengths: Signed $a_j = \mathbb E[g \mid j]\,P(j)$.
        projection: Density of a unit projection, the same for every cluster.
        step: Gate of the activation.
        form: `"printed"` evaluates Eqn. 42 as the paper prints it.
    """
    norm = float(np.linalg.norm(v))
    if norm == 0.0:
        raise ValueError("v must not be zero: the direction v/|v| is undefined there.")
    r = centres @ v + xi
    theta_1, theta_2 = thetas(r / norm if form == "corrected" else r, projection, step)
    pull, push, power = strengths * theta_1, float(strengths @ theta_2), 1
    if form == "printed":
        pull, power = pull / norm, 3
    return Velocity(pull @ centres + push * v / norm**power, float(pull.sum()))


def mean_activation(
    rho: Float[Array, " clusters"], projection: AbstractProjection = NORMAL, step: Step = RELU
) -> Float[Array, " clusters"]:
    r"""$F(\rho) = \theta_2 + \rho\,\theta_1$, the mean of $\phi(s + \rho)$ (Lemma 3, Eqn. 48).

    Its slope is $\theta_1$, so it increases if the gate is never negative. It vanishes at
    $-\infty$ only if $c_- = 0$ (E18).
    """
    return step.jump * projection.excess(rho) + step.c_minus * rho


def theta_slopes(
    rho: Float[Array, " clusters"],
    projection: AbstractProjection = NORMAL,
    step: Step = RELU,
    *,
    form: Form = "corrected",
) -> Thetas:
    r"""$\theta_1' = (c_+ - c_-)\,p_n(\rho)$ and $\theta_2' = -\rho\,\theta_1'$ (Lemma 5).

    The print has $c_- + c_+$, which is right for ReLU alone (E5).
    """
    height = step.jump if form == "corrected" else step.c_minus + step.c_plus
    slope = height * projection.density(rho)
    return Thetas(slope, -rho * slope)


def level(
    rho: Float[Array, " clusters"], projection: AbstractProjection = NORMAL, step: Step = RELU
) -> Float[Array, " clusters"]:
    r"""$q = F/\theta_1$: two clusters balance where their $\rho$ have equal $q$ (Lemma 4).

    For log-concave $p_n$ (normal, uniform, logistic, Laplace) and ReLU it never falls, so two
    different $\rho$ do not balance (E19).
    """
    if step.c_minus == 0.0:
        return projection.excess_over_cdf(rho)
    return mean_activation(rho, projection, step) / thetas(rho, projection, step).theta_1

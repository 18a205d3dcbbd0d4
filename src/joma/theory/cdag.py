r"""CDAG addendum, Theorem 1: does the gradient of a node reach the latent above its input?

Everything is a vector over the data. Node $j$ learns latent $z_\alpha$ from the signal
$p = \sigma_j' g_j$. After one gradient step from zero its weight on input $f_k$ is
$\langle f_k, p\rangle$, and it sends $g_{j \to k} = \langle f_k, p\rangle\,p$ down. The theorem
says that this correlates with the latent $z_\beta$ behind $f_k$ whenever the three correlations on
the way are positive. That is false (E22); it holds if the three angles add up to less than a right
angle.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array, Form

PAPER = {"CDAG Theorem 1": "guarantees_positive"}


class Links(NamedTuple):
    """The four vectors of the theorem."""

    p: Float[Array, " samples"]
    r"""Signal of the upper node, $\sigma_j' g_j$."""
    z_alpha: Float[Array, " samples"]
    """Latent that the upper node learns."""
    z_beta: Float[Array, " samples"]
    """Latent behind the lower input."""
    f_k: Float[Array, " samples"]
    """Lower input."""


class Angles(NamedTuple):
    """The three angles of the theorem, in radians."""

    theta_1: float
    r"""Between $z_\alpha$ and $p$."""
    theta_2: float
    r"""Between $z_\beta$ and $f_k$."""
    theta_3: float
    r"""Between $z_\alpha$ and $\pm z_\beta$, whichever is closer."""


def angles(links: Links) -> Angles:
    r"""The angles between the four vectors; $z_\beta$ may be anti-correlated with $z_\alpha$."""
    between = np.arccos(
        [
            _cosine(links.z_alpha, links.p),
            _cosine(links.z_beta, links.f_k),
            abs(_cosine(links.z_beta, links.z_alpha)),
        ]
    )
    return Angles(*between.tolist())


def correlation(links: Links) -> float:
    r"""$\langle z_\beta, g_{j\to k}\rangle$ for unit vectors: $\cos(f_k, p)\cos(z_\beta, p)$."""
    return _cosine(links.f_k, links.p) * _cosine(links.z_beta, links.p)


def guarantees_positive(given: Angles, *, form: Form = "corrected") -> bool:
    r"""Whether the theorem promises a positive `correlation` from these angles.

    As printed, three acute angles are enough; `counterexample` has them and a correlation of -1/4.
    What is enough is $\theta_1 + \theta_2 + \theta_3 < \pi/2$ (E22).
    """
    if form == "printed":
        return max(given) < np.pi / 2
    return sum(given) < np.pi / 2


def lower_bound(given: Angles) -> float:
    r"""$C_4 = \cos(\theta_1+\theta_3)\cos(\theta_1+\theta_2+\theta_3)$, attained in the plane.

    Raises:
        ValueError: If the angles do not guarantee anything.
    """
    if not guarantees_positive(given):
        raise ValueError(
            f"The bound needs theta_1 + theta_2 + theta_3 < pi/2 = 1.5708; got {sum(given):.4f}. "
            "Beyond it the correlation may have either sign."
        )
    outer = given.theta_1 + given.theta_3
    return float(np.cos(outer) * np.cos(outer + given.theta_2))


def generic_correlation(c_1: float, c_2: float, c_3: float) -> float:
    r"""$c_1^2 c_2 c_3^2$: the `correlation` if all residuals are orthogonal.

    Unit vectors $p = c_1 z_\alpha + \dots$, $f_k = c_2 z_\beta + \dots$ and
    $z_\beta = c_3 z_\alpha + \dots$; many samples in general position come close.
    """
    return c_1**2 * c_2 * c_3**2


def counterexample() -> Links:
    r"""Unit vectors in the plane at 0, 60, 120 and 60 degrees: premises 1/2, conclusion -1/4 (E22).

    Example:
        >>> links = counterexample()
        >>> guarantees_positive(angles(links), form="printed"), round(correlation(links), 12)
        (True, -0.25)
    """
    degrees = np.radians([0.0, 60.0, 120.0, 60.0])
    return Links(*np.stack([np.cos(degrees), np.sin(degrees)], axis=1))


def _cosine(a: Array, b: Array) -> float:
    return float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))

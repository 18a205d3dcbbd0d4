r"""HBLT, the hierarchical binary latent tree: how often two tokens occur together (Theorem 5).

Leaves $y_l$ are at level 0, a categorical root $y_0$ at level $L$, its binary child $y_1$ at level
$L - 1$. Each latent below is a copy of its parent, flipped with probability $(1 - \rho)/2$. Two
leaves that part at level $H$ share everything above it.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from joma._core.typing import Array, Form

PAPER = {
    "Lemma 8": "edge_matrix",
    "Lemma 9": "path_polarity",
    "Theorem 5": "cooccurrence",
    "Eqn. 8": "near_certain_expansion",
}


def edge_matrix(rho: float) -> Float[Array, "2 2"]:
    r"""$M(\rho) = \frac12(\mathbf{11}^\top + \rho\,ee^\top)$: one noisy copy of a bit (Lemma 8).

    $M(\rho_1)M(\rho_2) = M(\rho_1\rho_2)$: a path of edges is one edge with the product.
    """
    return np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2


def polarity_vector(rho: float) -> Float[Array, " 2"]:
    r"""$p(\rho) = \frac12(1 + \rho, 1 - \rho)$, the law of a bit with polarity $\rho$ (Lemma 8)."""
    return np.array([1 + rho, 1 - rho]) / 2


def path_polarity(rhos: Sequence[float]) -> float:
    r"""$\rho_{\gamma|\alpha}$ from a latent to a descendant, the product of its edges (Lemma 9)."""
    return float(np.prod(rhos))


def root_polarity(
    zero_given_class: Float[Array, " clusters"],
    prior: Float[Array, " clusters"],
    *,
    form: Form = "corrected",
) -> float:
    r"""$\rho_0 = 2\,\mathbb E_k P[y_1 = 0 \mid y_0 = k] - 1$, from the classes of the root.

    Theorem 5 prints $\rho_0 = \mathbb E_k P[y_l = 0 \mid y_0 = k]$, while its proof uses this
    polarity (E10).

    Args:
        zero_given_class: $P[y_1 = 0 \mid y_0 = k]$ for each class $k$.
        prior: $P[y_0 = k]$.
        form: `"printed"` leaves out the factor 2 and the -1.
    """
    if abs(prior.sum() - 1) > 1e-9:
        raise ValueError(f"The class probabilities must sum to 1; they sum to {prior.sum():.12g}.")
    mean = float(zero_given_class @ prior)
    return 2 * mean - 1 if form == "corrected" else mean


def cooccurrence(rho: float, rho_0: float, *, levels: int, ancestor: int) -> float:
    r"""$P[y_l = 1 \mid y_m = 1]$ of two leaves with their common ancestor at level $H$ (Theorem 5).

    $1 - (1 - \rho^{2H}) / (2 (1 - \rho^{L-1}\rho_0))$, through `expm1` where both are positive: the
    two differences vanish together as $\rho \to 1$.

    Args:
        rho: Polarity of every edge, in `[-1, 1]`.
        rho_0: Polarity of the top latent; see `root_polarity`.
        levels: Level $L$ of the root.
        ancestor: Level $H$ of the closest common ancestor, at most $L - 1$ (E21).

    Returns:
        A probability, or `nan` if $y_m$ is never 1.

    Example:
        >>> round(cooccurrence(0.9, 0.9, levels=6, ancestor=2), 6)
        0.633024
    """
    _check_levels(levels, ancestor)
    if max(abs(rho), abs(rho_0)) > 1:
        raise ValueError(f"Polarities lie in [-1, 1]; got rho = {rho:g}, rho_0 = {rho_0:g}.")
    if rho > 0 and rho_0 > 0:
        apart = np.expm1(2 * ancestor * np.log(rho))
        rare = np.expm1((levels - 1) * np.log(rho) + np.log(rho_0))
    else:
        apart, rare = rho ** (2 * ancestor) - 1, rho ** (levels - 1) * rho_0 - 1
    return float(1 - apart / rare / 2) if rare else float("nan")


def cooccurrence_near_certain(eps: float, eps_0: float, *, levels: int, ancestor: int) -> float:
    r"""`cooccurrence` at $\rho = 1 - \epsilon$ and $\rho_0 = 1 - \epsilon_0$, from the epsilons.

    A float close to 1 keeps four digits of an $\epsilon$ of 1e-12; its own argument keeps all.
    """
    _check_levels(levels, ancestor)
    if not (0 <= eps < 1 and 0 <= eps_0 < 1):
        raise ValueError(f"eps and eps_0 lie in [0, 1); got {eps:g} and {eps_0:g}.")
    apart = np.expm1(2 * ancestor * np.log1p(-eps))
    rare = np.expm1((levels - 1) * np.log1p(-eps) + np.log1p(-eps_0))
    return float(1 - apart / rare / 2) if rare else float("nan")


def cooccurrence_of_paths(rho_l: float, rho_m: float, rho_c: float) -> float:
    r"""$P[y_l = 1 \mid y_m = 1]$ when every edge has its own polarity.

    Args:
        rho_l: $\rho_{l|c}$, from the common ancestor $c$ down to leaf $l$ (`path_polarity`).
        rho_m: $\rho_{m|c}$, down to leaf $m$.
        rho_c: $\rho_{c|1}\rho_0$, the polarity of the common ancestor itself.
    """
    rare = 1 - rho_m * rho_c
    return (1 + rho_l * rho_m - (rho_l + rho_m) * rho_c) / rare / 2 if rare else float("nan")


def near_certain_slope(levels: int, ancestor: int) -> float:
    r"""$H(2H - L)/(2L)$, the coefficient of $\epsilon$ that Eqn. 8 claims to be 0 (E11)."""
    _check_levels(levels, ancestor)
    return ancestor * (2 * ancestor - levels) / (2 * levels)


def near_certain_expansion(
    eps: float, *, levels: int, ancestor: int, form: Form = "corrected"
) -> float:
    r"""$1 - H/L$ to first order in $\epsilon$, for $\rho = \rho_0 = 1 - \epsilon$ (Eqn. 8).

    The print stops at $1 - H/L$ and gives the remainder as $O(\epsilon^2)$. It is $O(\epsilon)$
    unless $L = 2H$ (E11); ours adds `near_certain_slope` times $\epsilon$.
    """
    slope = near_certain_slope(levels, ancestor) if form == "corrected" else 0.0
    return 1 - ancestor / levels + eps * slope


def sample_leaves(
    rng: np.random.Generator,
    samples: int,
    *,
    rho: float,
    rho_0: float,
    levels: int,
    branching: int = 2,
) -> Bool[Array, "samples tokens"]:
    r"""Leaves of a complete tree, drawn from the top down: copy the parent, sometimes flip.

    There are `branching ** (levels - 1)` of them, in order: leaves $i$ and $j$ have their common
    ancestor at level `ancestor_level(i, j, branching)`.
    """
    latent = rng.random((samples, 1)) >= (1 + rho_0) / 2  # y_1, which is 0 with that probability
    for _ in range(levels - 1):
        latent = np.repeat(latent, branching, axis=1)
        latent = latent ^ (rng.random(latent.shape) < (1 - rho) / 2)
    return latent


def ancestor_level(i: int, j: int, branching: int = 2) -> int:
    """Level of the closest common ancestor of two leaves in the order of `sample_leaves`.

    Example:
        >>> [ancestor_level(0, j) for j in range(5)]
        [0, 1, 2, 2, 3]
    """
    level = 0
    while i != j:
        i, j, level = i // branching, j // branching, level + 1
    return level


def _check_levels(levels: int, ancestor: int) -> None:
    if not 0 <= ancestor <= levels - 1:
        raise ValueError(
            f"The common ancestor must be a binary latent, 0 <= H <= L - 1 = {levels - 1}; got "
            f"H = {ancestor}. Leaves that only share the categorical root are not covered by "
            "Theorem 5 (E21)."
        )

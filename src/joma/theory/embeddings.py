r"""How many embeddings fit almost orthogonally into $d$ dimensions (Section 7).

Theorem 1 needs orthonormal embeddings. A vocabulary larger than $d$ cannot have them; random unit
vectors come close. `tokens` is the size of the vocabulary $M$, `embed` the dimension $d$.
"""

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array, Form

PAPER = {"Section 7": "sufficient_dimension"}


def collision_bound(tokens: int, embed: int, eps: float) -> float:
    r"""Upper bound $M^2e^{-d\epsilon^2/2}$ on $P(\max|u_l^\top u_{l'}| > \epsilon)$, at most 1.

    Union bound over the pairs of random unit vectors.
    """
    return float(np.exp(min(0.0, 2 * np.log(tokens) - embed * eps**2 / 2)))


def sufficient_dimension(tokens: int, eps: float, *, form: Form = "corrected") -> float:
    r"""Dimension $8\epsilon^{-2}\ln M$ in which random vectors fail with probability $\le M^{-2}$.

    Section 7 prints "only $d \le 8\epsilon^{-2}\log M$ is needed". It is sufficient, not needed,
    and the logarithm is natural: read as $\log_{10}$, `form="printed"`, it is too small (E33).

    Example:
        >>> round(sufficient_dimension(50257, 0.1))
        8660
    """
    log = np.log10(tokens) if form == "printed" else np.log(tokens)
    return float(8 * log / eps**2)


def union_bound_dimension(tokens: int, eps: float) -> float:
    r"""Dimension $4\epsilon^{-2}\ln M$ below which `collision_bound` says nothing.

    Usually enough in practice: it is where the typical largest cosine equals `eps`.
    """
    return float(4 * np.log(tokens) / eps**2)


def typical_largest_cosine(tokens: int, embed: int) -> float:
    r"""About the largest $|u_l^\top u_{l'}|$ among random unit vectors, $\sqrt{4\ln M/d}$.

    Slightly above what is seen: the union bound counts every pair as if it were independent.
    """
    return float(np.sqrt(4 * np.log(tokens) / embed))


def welch_bound(tokens: int, embed: int) -> float:
    r"""No set of unit vectors has a smaller largest cosine: $\sqrt{(M-d)/(d(M-1))}$, or 0."""
    if tokens <= embed:
        return 0.0
    return float(np.sqrt((tokens - embed) / (embed * (tokens - 1))))


def mean_cosine(embed: int) -> float:
    r"""Mean $|u_l^\top u_{l'}|$ of random unit vectors, $\sqrt{2/(\pi d)}$ for large $d$.

    The floor below which measured embeddings show no structure. Exact to a factor $1 + 1/(4d)$.
    """
    return float(np.sqrt(2 / (np.pi * embed)))


def random_unit_vectors(
    tokens: int, embed: int, rng: np.random.Generator
) -> Float[Array, "tokens embed"]:
    """Vectors drawn uniformly from the unit sphere."""
    return _unit(rng.standard_normal((tokens, embed)))


def cosines(embedding: Float[Array, "tokens embed"]) -> Float[Array, " pairs"]:
    r"""$|u_l^\top u_{l'}|$ of all pairs $l < l'$."""
    unit = _unit(embedding)
    pairs = np.triu_indices(len(unit), k=1)
    return np.asarray(np.abs(unit @ unit.T)[pairs])


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

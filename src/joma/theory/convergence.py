r"""How much faster salient tokens converge than the others (Theorem 4, Lemmas 6 and 7).

Under Eqn. 6 from $v = 0$ all tokens have spent the same time, $F(L_j, \mu_j) = F(L_k, \mu_k)$, and
$F$ is $e^{-\mu^2/2}L$ up to a bounded remainder. Theorem 4 compares $L = \ln(1/\delta)$ of two
tokens; its identity holds, its threshold for when the comparison is sharp does not (E8).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import dawsn, erf

from joma._core.typing import Array, Form
from joma.theory import nonlinear

PAPER = {
    "Theorem 4": "deviation",
    "Eqn. 7": "ratio",
    "Eqn. 88": "remainder_bound",
    "Lemma 6": "lemma6",
    "Lemma 7": "lemma7",
}


class Maximum(NamedTuple):
    """Where a function is largest, and how large it is there."""

    at: float
    value: float


def leading_ratio(mu_j: float, mu_k: float) -> float:
    r"""$e^{(\mu_j^2 - \mu_k^2)/2}$, to which $L_j/L_k$ tends."""
    return float(np.exp((mu_j - mu_k) * (mu_j + mu_k) / 2))


def ratio(progress_k: Float[Array, " times"], mu_j: float, mu_k: float) -> Float[Array, " times"]:
    r"""$L_j/L_k$ when token $k$ has come to `progress_k` $= L_k > 0$ (left side of Eqn. 7)."""
    return _partner(progress_k, mu_j, mu_k) / progress_k


def lag(progress_k: Float[Array, " times"], mu_j: float, mu_k: float) -> Float[Array, " times"]:
    r"""$\lambda_{jk} = R(L_k, \mu_k) - R(L_j, \mu_j)$ of Theorem 4, at most `lag_bound` in size."""
    progress_j = _partner(progress_k, mu_j, mu_k)
    behind = nonlinear.remainder(progress_k, np.full_like(progress_k, mu_k))
    return behind - nonlinear.remainder(progress_j, np.full_like(progress_k, mu_j))


def deviation(
    progress_k: Float[Array, " times"], mu_j: float, mu_k: float, *, form: Form = "corrected"
) -> Float[Array, " times"]:
    r"""$\Lambda = \lambda_{jk}e^{\mu_k^2/2}/L_k$, by which Eqn. 7 misses `leading_ratio`.

    The paper defines it so and then concludes as if it were $\lambda_{jk}e^{-\mu_k^2}/L_k$, which
    `form="printed"` returns and which is far too small (E8).
    """
    exponent = -(mu_k**2) if form == "printed" else mu_k**2 / 2
    return lag(progress_k, mu_j, mu_k) * float(np.exp(exponent)) / progress_k


def threshold(mu_k: float, *, form: Form = "corrected") -> float:
    r"""$\delta_k$ far below which $|\Lambda| \ll 1$: $\exp[-(\sqrt{2\pi}+2)e^{+\mu_k^2/2}]$.

    Theorem 4 prints $e^{-\mu_k^2}$ in the exponent, and so a threshold that is passed almost at
    once: .92 instead of $3\cdot10^{-15}$ for $\mu_k = 2$ (E8).
    """
    exponent = -(mu_k**2) if form == "printed" else mu_k**2 / 2
    return float(np.exp(-lag_bound(form="printed") * np.exp(exponent)))


def lag_bound(*, form: Form = "corrected") -> float:
    r"""Bound on $|\lambda_{jk}|$: .8643, where Theorem 4 prints $\sqrt{2\pi} + 2 = 4.5066$.

    Two numbers in $(0, B)$ differ by less than $B$; the paper takes $2B$, and a loose $B$ (E27).
    """
    return remainder_bound(form=form) * (2 if form == "printed" else 1)


def remainder_bound(*, form: Form = "corrected") -> float:
    r"""Bound on the remainder in Eqn. 88: its supremum .8643, or as printed $\sqrt{\pi/2} + 1$.

    Example:
        >>> round(remainder_bound(), 6), round(remainder_bound(form="printed"), 4)
        (0.864325, 2.2533)
    """
    return float(np.sqrt(np.pi / 2) + 1) if form == "printed" else largest_remainder().value


def largest_remainder() -> Maximum:
    r"""The $\mu$ with the largest $R_\infty(\mu)$, and that value.

    Eqn. 84 at $r = 1$ gives $R_\infty' = \zeta(1, \mu) - \mu R_\infty$; its root is the place.
    """

    def slope(mu: float) -> float:
        zeta = np.sqrt(np.pi / 2) * erf(mu / np.sqrt(2)) - np.expm1(-(mu**2) / 2) / mu
        return float(zeta - mu * _remainder_limit(mu))

    at = brentq(slope, 1.0, 3.0, xtol=1e-14)
    return Maximum(at, _remainder_limit(at))


def late_progress(t: Float[Array, " times"], mu: float) -> Float[Array, " times"]:
    r"""$e^{\mu^2/2}(t - R_\infty(\mu))$, to which $L(t)$ tends with an error that vanishes."""
    return float(np.exp(mu**2 / 2)) * (t - _remainder_limit(mu))


def late_ratio(t: Float[Array, " times"], mu_j: float, mu_k: float) -> Float[Array, " times"]:
    r"""Sharp late form of Eqn. 7, right to six digits from $L_k \ge 20$.

    `leading_ratio` is reached only at $\delta_k \sim e^{-100}$.
    """
    return late_progress(t, mu_j) / late_progress(t, mu_k)


def lemma6(y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$g(y) = (1 - e^{-y^2})/y$, and its limit 0 at 0."""
    return np.where(y == 0, 0.0, -np.expm1(-(y**2)) / np.where(y == 0, 1.0, y))


def lemma6_maximum() -> Maximum:
    r"""Largest $g$: .638173, below the $1/\sqrt2$ of Lemma 6. There $e^{y^2} = 1 + 2y^2$."""
    at = brentq(lambda y: np.expm1(y**2) - 2 * y**2, 0.5, 2.0, xtol=1e-15)
    return Maximum(at, float(lemma6(np.array([at]))[0]))


def lemma7(y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$G(y) = e^{-y^2/2}\int_0^y e^{x^2/2}dx = \sqrt2\,D(y/\sqrt2)$ with Dawson's integral $D$."""
    return np.asarray(np.sqrt(2) * dawsn(y / np.sqrt(2)))


def lemma7_maximum() -> Maximum:
    r"""Largest $G$: .765152, below the 1 of Lemma 7. There $yG(y) = 1$."""
    at = brentq(lambda y: y * float(lemma7(np.array([y]))[0]) - 1, 0.5, 3.0, xtol=1e-15)
    return Maximum(at, float(lemma7(np.array([at]))[0]))


def _partner(progress_k: Array, mu_j: float, mu_k: float) -> Array:
    """Progress of token j at the moment when token k has `progress_k`."""
    if not np.all(progress_k > 0):
        raise ValueError(
            f"progress_k = ln(1 / delta_k) must be positive; got min {progress_k.min():.6g}."
        )
    t = nonlinear.time_to_reach(progress_k, np.full_like(progress_k, mu_k))
    return nonlinear.progress(t, np.array([mu_j]))[:, 0]


def _remainder_limit(mu: float) -> float:
    return float(nonlinear.remainder_limit(np.array([mu]))[0])

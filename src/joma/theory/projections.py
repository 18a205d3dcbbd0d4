r"""Densities $p_n$ of a unit projection of an isotropic cluster, the one thing a node sees of it.

A small family with closed forms, from bounded support to power-law tails, because the tail decides
whether Lemma 4 has solutions at all (Eqn. 58).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float
from scipy.integrate import quad
from scipy.special import expit, gamma, log_ndtr, ndtr, softmax, stdtr

from joma._core.typing import Array, ScalarFunction

PAPER = {"Eqn. 35": "projection_density", "Eqn. 58": "heaviness"}


class AbstractProjection(ABC):
    """Density $p_n$ of a unit projection of an isotropic cluster: even, with a finite mean."""

    @property
    @abstractmethod
    def landmarks(self) -> tuple[float, ...]:
        """Where a quadrature should break, sorted, from one end of the support to the other."""

    @abstractmethod
    def density(self, s: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        """$p_n(s)$."""

    @abstractmethod
    def cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        r"""$P[s \le \rho]$, which is also $P[s + \rho \ge 0]$: how often a ReLU is open."""

    @abstractmethod
    def upper_moment(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        r"""$\int_{-\rho}^\infty s\,p_n(s)\,ds$, even in $\rho$."""

    @abstractmethod
    def excess(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        r"""$\mathbb E[(s + \rho)_+]$, the mean of a ReLU, without cancellation in the left tail."""

    def excess_over_cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        """`excess / cdf`, and `nan` where nothing of the cluster is left."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.excess(rho) / self.cdf(rho))


@dataclass(frozen=True)
class GaussianMixture(AbstractProjection):
    """Centred normals of several widths: isotropic in every dimension, heavy-tailed if mixed."""

    weights: tuple[float, ...]
    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.sigmas) or min(*self.weights, *self.sigmas, 1.0) <= 0:
            raise ValueError(
                "A mixture needs one positive weight per positive sigma; "
                f"got weights {self.weights} and sigmas {self.sigmas}."
            )
        if not np.isclose(sum(self.weights), 1.0, rtol=0, atol=1e-12):
            raise ValueError(f"The weights must sum to 1; they sum to {sum(self.weights):.15g}.")

    @property
    def landmarks(self) -> tuple[float, ...]:
        return _both_sides(*self.sigmas)

    def density(self, s: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray((_bell(self._scaled(s)) / self.sigmas) @ self.weights)

    def cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray(ndtr(self._scaled(rho)) @ self.weights)

    def upper_moment(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray((_bell(self._scaled(rho)) * self.sigmas) @ self.weights)

    def excess(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        x = self._scaled(rho)
        return np.asarray((ndtr(x) * _mean_residual(x) * self.sigmas) @ self.weights)

    def excess_over_cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        """`excess / cdf` as an average over the parts, which survives where both underflow."""
        x = self._scaled(rho)
        share = softmax(np.log(self.weights) + log_ndtr(x), axis=-1)
        return np.asarray((share * _mean_residual(x)) @ self.sigmas)

    def _scaled(self, s: Array) -> Array:
        return np.asarray(s[..., None] / self.sigmas)  # [clusters, parts]


NORMAL = GaussianMixture((1.0,), (1.0,))


def _bell(x: Array) -> Array:
    return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def _mean_residual(x: Array) -> Array:
    r"""Mean of $s + x$ given that it is positive, $x + \varphi/\Phi$, for a standard normal $s$.

    The two terms cancel in the left tail. There Laplace's continued fraction for Mills' ratio,
    $1/(|x| + c)$ with $c = 1/(|x| + 2/(|x| + 3/\dots))$, gives the answer without a subtraction:
    it is $c$.
    """
    near, far = np.maximum(x, -3.0), np.maximum(-x, 3.0)
    c = np.zeros_like(far)
    for k in range(80, 0, -1):  # full precision from |x| = 3 on
        c = k / (far + c)
    return np.asarray(np.where(x > -3.0, near + _bell(near) / ndtr(near), c))


@dataclass(frozen=True)
class Uniform(AbstractProjection):
    """Flat on `[-half_width, half_width]`: the projections of a sphere in three dimensions."""

    half_width: float = 1.0

    @property
    def landmarks(self) -> tuple[float, ...]:
        return (-self.half_width, 0.0, self.half_width)

    def density(self, s: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.where(np.abs(s) <= self.half_width, 0.5 / self.half_width, 0.0)

    def cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray(np.clip(0.5 + 0.5 * rho / self.half_width, 0.0, 1.0))

    def upper_moment(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        w = self.half_width
        return np.asarray(np.maximum(w**2 - rho**2, 0.0) / (4 * w))

    def excess(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        w = self.half_width
        return np.asarray((np.clip(rho, -w, w) + w) ** 2 / (4 * w) + np.maximum(rho - w, 0.0))


@dataclass(frozen=True)
class Laplace(AbstractProjection):
    """Two-sided exponential, on the edge of Eqn. 58 and of log-concavity."""

    scale: float = 1.0

    @property
    def landmarks(self) -> tuple[float, ...]:
        return _both_sides(self.scale)

    def density(self, s: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray(np.exp(-np.abs(s) / self.scale) / (2 * self.scale))

    def cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        tail = np.exp(-np.abs(rho) / self.scale) / 2
        return np.asarray(np.where(rho > 0, 1 - tail, tail))

    def upper_moment(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        a = np.abs(rho)
        return np.asarray((a + self.scale) / 2 * np.exp(-a / self.scale))

    def excess(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.maximum(rho, 0.0) + self.scale / 2 * np.exp(-np.abs(rho) / self.scale)


@dataclass(frozen=True)
class Logistic(AbstractProjection):
    """Logistic density; the mean of a ReLU over it is a softplus."""

    scale: float = 1.0

    @property
    def landmarks(self) -> tuple[float, ...]:
        return _both_sides(self.scale)

    def density(self, s: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray(expit(s / self.scale) * expit(-s / self.scale) / self.scale)

    def cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray(expit(rho / self.scale))

    def upper_moment(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        x = np.abs(rho) / self.scale
        return np.asarray(self.scale * (x * expit(-x) + np.log1p(np.exp(-x))))

    def excess(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray(self.scale * np.logaddexp(0.0, rho / self.scale))


@dataclass(frozen=True)
class StudentT(AbstractProjection):
    """Student's t with `df` degrees of freedom: power-law tails, isotropic in every dimension."""

    df: float

    def __post_init__(self) -> None:
        if not self.df > 1:
            raise ValueError(
                f"Lemma 3 needs a finite mean, so df must exceed 1; got df = {self.df:g}."
            )

    @property
    def landmarks(self) -> tuple[float, ...]:
        return _both_sides(1.0)

    def density(self, s: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        n = self.df
        height = gamma((n + 1) / 2) / gamma(n / 2) / np.sqrt(n * np.pi)
        return np.asarray(height * (1 + s**2 / n) ** (-(n + 1) / 2))

    def cdf(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray(stdtr(self.df, rho))

    def upper_moment(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        return np.asarray((self.df + rho**2) / (self.df - 1) * self.density(rho))

    def excess(self, rho: Float[Array, " clusters"]) -> Float[Array, " clusters"]:
        a = np.abs(rho)
        return np.asarray(np.maximum(rho, 0.0) + self.upper_moment(a) - a * self.cdf(-a))


def _both_sides(*scales: float) -> tuple[float, ...]:
    right = sorted(k * scale for scale in scales for k in (2.0, 8.0))
    return (-np.inf, *(-s for s in reversed(right)), 0.0, *right, np.inf)


def projection_density(
    radial: ScalarFunction, y: Float[Array, " clusters"], *, dimension: int
) -> Float[Array, " clusters"]:
    r"""$p_n(y)$ from the radial profile $p_0$ of an isotropic density in `dimension` $n \ge 2$.

    Eqn. 35, $p_n(y) = \frac{(n-1)\pi^{(n-1)/2}}{\Gamma((n+1)/2)}
    \int_0^\infty p_0(\sqrt{y^2+\ell^2})\,\ell^{n-2} d\ell$; Eqn. 36 writes the same factor in
    double factorials.
    """
    n = dimension
    if n < 2:
        raise ValueError(f"Eqn. 35 integrates over n - 1 >= 1 directions; got dimension = {n}.")
    surface = (n - 1) * np.pi ** ((n - 1) / 2) / gamma((n + 1) / 2)

    def profile(height: float) -> float:
        cuts = (0.0, 1.0, np.inf)
        return integral(lambda s: radial(np.hypot(height, s)) * s ** (n - 2), cuts)

    return np.array([surface * profile(float(height)) for height in y])


def heaviness(projection: AbstractProjection) -> float:
    r"""$\theta_2(0)\,p_n(0)$ of ReLU: above 1/4, $q = F/\theta_1$ falls at 0 (Eqn. 58).

    There $q' = 1 - 4\,\theta_2 p_n$. Normal 0.159, uniform 0.125, logistic 0.173, Laplace and t(2)
    exactly 1/4 (E19). Sufficient only: t(3) has 0.203 at 0, and its $q$ falls further left.
    """
    zero = np.zeros(1)
    return float((projection.upper_moment(zero) * projection.density(zero))[0])


def integral(integrand: ScalarFunction, edges: tuple[float, ...]) -> float:
    """Sum of adaptive quadratures between neighbouring edges."""

    def value(s: float) -> float:
        return float(integrand(np.array([s]))[0])

    pieces = [(a, b) for a, b in pairwise(edges) if a < b]
    parts = (quad(value, a, b, epsabs=1e-14, epsrel=1e-12, limit=400)[0] for a, b in pieces)
    return float(sum(parts))

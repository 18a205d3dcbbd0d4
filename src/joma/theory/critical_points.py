r"""Lemma 4 and Theorem 3: where two clusters balance, and the flow close by, linearised.

One cluster sits at $\bar x_+$ and attracts with $a_+ > 0$, the other sits at 0 and repels with
$a_- > 0$; both strengths are positive here and their signs explicit (E18). The gate is ReLU's.

Read everything below as a local linearisation. The flow of Lemma 2 has no isolated critical point:
it ignores the length of $(v, \xi)$, so what balances is a ray, and only for one distance of the
clusters (E19). As printed it has isolated ones, and none of them is stable (E20). Eqn. 6 is
therefore the definition of a model, not a corollary of Theorem 3. An isolated attractor does
appear under weight decay.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from joma._core.typing import Array, Form, ScalarFunction
from joma.theory import clusters
from joma.theory.projections import NORMAL, AbstractProjection

PAPER = {
    "Lemma 4": "level_roots",
    "Theorem 3": "linearisation",
    "Eqn. 55": "strength_ratio",
    "Eqn. 72": "printed_linearisation",
    "Eqn. 73": "betas",
    "Eqn. 74": "betas",
}


def turning_points(projection: AbstractProjection) -> Float[Array, " points"]:
    r"""Where $q = F/\theta_1$ stops rising or falling. Empty: no two clusters can balance."""
    grid = _grid(projection)
    defined = np.isfinite(clusters.level(grid, projection))
    return _sign_changes(lambda r: _level_slope(r, projection), grid[defined])


def level_roots(level: float, projection: AbstractProjection) -> Float[Array, " points"]:
    r"""Every $\rho$ with $q(\rho) = F/\theta_1 =$ `level`, sorted: the balances of Lemma 4.

    Two clusters are stationary at $\rho_\pm$ if both have the same level and
    $a_-/a_+ = \theta_1(\rho_+)/\theta_1(\rho_-)$ (Eqn. 55). One root means that they cannot be.

    Example:
        >>> from joma.theory.projections import GaussianMixture
        >>> heavy = GaussianMixture((0.9, 0.1), (0.3, 3.0))
        >>> level_roots(1.0, heavy).round(6).tolist()
        [-7.152897, -0.442501, 0.879036]
        >>> level_roots(1.0, NORMAL).round(6).tolist()
        [0.481058]
    """
    far = 1e6 * float(np.abs(_grid(projection)).max())
    low = -far
    while np.isnan(clusters.level(np.array([low]), projection)[0]):
        low /= 2  # left of the support, or where a quadrature underflows
    edges = np.array([low, *turning_points(projection), far])
    return _sign_changes(lambda r: clusters.level(r, projection) - level, edges)


def strength_ratio(rho_minus: float, rho_plus: float, projection: AbstractProjection) -> float:
    r"""$a_-/a_+ = \theta_1(\rho_+)/\theta_1(\rho_-)$ at a balance (Eqn. 55).

    It is not confined to $(1/2, 2)$, as the paper says: 197.6 occurs for its own kind of $p_n$
    (E18).
    """
    below, above = projection.cdf(np.array([rho_minus, rho_plus]))
    return float(above / below)


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoClusters:
    """An attracting cluster and a repelling one at the origin, seen by a ReLU."""

    centre: Float[Array, " tokens"]
    a_minus: float
    a_plus: float = 1.0
    projection: AbstractProjection = NORMAL

    def velocity(
        self, v: Float[Array, " tokens"], xi: float, *, form: Form = "corrected"
    ) -> clusters.Velocity:
        """Lemma 2 for these two clusters."""
        centres = np.stack([self.centre, np.zeros_like(self.centre)])
        strengths = np.array([self.a_plus, -self.a_minus])
        return clusters.velocity(v, xi, centres, strengths, projection=self.projection, form=form)


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticalPoint:
    r"""A state $(\mu, \xi)$ where the velocity vanishes, and the clusters it belongs to."""

    pair: TwoClusters
    mu: Float[Array, " tokens"]
    xi: float

    @property
    def sign(self) -> float:
        r"""$s_\mu$, the sign of $\mu^\top\bar x_+$."""
        return float(np.sign(self.mu @ self.pair.centre))

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.mu))


def printed_point(
    rho_minus: float,
    rho_plus: float,
    centre: Float[Array, " tokens"],
    *,
    projection: AbstractProjection,
    a_plus: float = 1.0,
) -> CriticalPoint:
    r"""The isolated critical point $\|\mu\| = |r_+ - r_-|/\|\bar x_+\|$ of Eqn. 42 as printed.

    A balance of the printed dynamics only: theirs takes $r_\pm$ where ours takes $r_\pm/\|v\|$.
    """
    ratio = strength_ratio(rho_minus, rho_plus, projection)
    pair = TwoClusters(centre=centre, a_minus=a_plus * ratio, a_plus=a_plus, projection=projection)
    mu = (rho_plus - rho_minus) * centre / (centre @ centre)
    return CriticalPoint(pair=pair, mu=mu, xi=rho_minus)


def ray_point(
    rho_minus: float,
    rho_plus: float,
    direction: Float[Array, " tokens"],
    *,
    projection: AbstractProjection,
    norm: float = 1.0,
    a_plus: float = 1.0,
) -> CriticalPoint:
    r"""The point with $\|\mu\| =$ `norm` on a ray of critical points of Lemma 2.

    Every `norm` is critical, but the clusters must be exactly $|\rho_+ - \rho_-|$ apart along the
    unit vector `direction` (E7, E19).
    """
    gap = rho_plus - rho_minus
    ratio = strength_ratio(rho_minus, rho_plus, projection)
    pair = TwoClusters(
        centre=abs(gap) * direction, a_minus=a_plus * ratio, a_plus=a_plus, projection=projection
    )
    return CriticalPoint(pair=pair, mu=np.sign(gap) * norm * direction, xi=norm * rho_minus)


def betas(point: CriticalPoint) -> tuple[float, float]:
    r"""$\beta_1, \beta_2$ of Eqn. 73-74, for the dynamics as printed.

    They already contain $s_\mu$. $\beta_1 = s\,a_+ X m^{-2}\theta_1(r_+)$ and
    $\beta_2 = s\,a_+ X m^{-4}(\xi\theta_1'(r_+) - 2\theta_1(r_+))$, with $X = \|\bar x_+\|$ and
    $m = \|\mu\|$.
    """
    pair, m = point.pair, point.norm
    r_plus = np.array([float(point.mu @ pair.centre) + point.xi])
    gate, slope = float(pair.projection.cdf(r_plus)[0]), float(pair.projection.density(r_plus)[0])
    scale = point.sign * pair.a_plus * float(np.linalg.norm(pair.centre))
    return scale * gate / m**2, scale * (point.xi * slope - 2 * gate) / m**4


def printed_linearisation(
    point: CriticalPoint, *, form: Form = "corrected"
) -> Float[Array, "tokens tokens"]:
    r"""$C = \beta_1 I + \beta_2 \mu\mu^\top$ in $\dot v \approx C(\mu - v)$, dynamics as printed.

    The statement of Theorem 3 multiplies by $s_\mu$ once more; `form="printed"` does, and calls
    unstable points stable (E6). Never positive definite for ReLU and $n \ge 3$ (E20).
    """
    beta_1, beta_2 = betas(point)
    matrix = beta_1 * np.eye(len(point.mu)) + beta_2 * np.outer(point.mu, point.mu)
    return matrix if form == "corrected" else point.sign * matrix


class Eigenvalues(NamedTuple):
    r"""Decay rates of perturbations of a critical ray; negative ones grow."""

    perpendicular: float
    r"""Across $\bar x_+$, `tokens - 1` times."""
    along_mu: float
    r"""Along $\mu$ with $\xi$ held fixed."""
    joint: float
    r"""In the plane of $\mu$ and $\xi$, both free; the other rate there is 0, along the ray."""


def eigenvalues(point: CriticalPoint) -> Eigenvalues:
    r"""Decay rates at a point of a ray of Lemma 2 (replaces Theorem 3's $\beta$s, E7).

    The ray attracts if `perpendicular` and `joint` are positive, that is if $s_\mu = 1$ and
    $a_- p_n(\rho_-) > a_+ p_n(\rho_+)$. Rates fall like $1/\|\mu\|$ along it.
    """
    pair, m = point.pair, point.norm
    rho = np.array([point.xi, float(point.mu @ pair.centre) + point.xi]) / m
    p_minus, p_plus = pair.projection.density(rho)
    balance = float(pair.a_minus * p_minus - pair.a_plus * p_plus)
    pull = pair.a_plus * float(pair.projection.cdf(rho)[1]) * float(np.linalg.norm(pair.centre))
    tilt = (point.xi / m) ** 2
    return Eigenvalues(point.sign * pull / m, tilt * balance / m, (1 + tilt) * balance / m)


def linearisation(point: CriticalPoint) -> Float[Array, "tokens tokens"]:
    r"""$C$ in $\dot v \approx C(\mu - v)$ on a critical ray, with $\xi$ held fixed (Theorem 3).

    The form that holds for Lemma 2 (E7); `printed_linearisation` has the paper's.
    """
    rates = eigenvalues(point)
    along = np.outer(point.mu, point.mu) / point.norm**2
    return np.asarray(
        rates.perpendicular * (np.eye(len(point.mu)) - along) + rates.along_mu * along
    )


class Growth(NamedTuple):
    """How a node escapes along its strongest direction when nothing holds it."""

    rate: float
    r"""Limit of $\|v\|/t$."""
    tilt: float
    r"""Limit of $\xi/\|v\|$."""


def growth(pair: TwoClusters) -> Growth:
    r"""Linear growth of $v$ along $\bar x_+$: what generic clusters do instead of converging.

    The limit direction maximises $\mathbb E[g h]/\|(v, \xi)\|$ (E19).

    Raises:
        ValueError: If $\mathbb E[gh]$ exceeds rounding nowhere along $\bar x_+$: $v$ shrinks to 0.
    """
    distance = float(np.linalg.norm(pair.centre))

    def pulls(tilt: Array) -> tuple[Array, Array]:
        above = clusters.thetas(tilt + distance, pair.projection)
        below = clusters.thetas(tilt, pair.projection)
        bias = pair.a_plus * above.theta_1 - pair.a_minus * below.theta_1
        outward = pair.a_plus * above.theta_2 - pair.a_minus * below.theta_2
        return outward + pair.a_plus * distance * above.theta_1, bias

    def turning(tilt: Array) -> Array:
        outward, bias = pulls(tilt)
        return np.asarray(bias - tilt * outward)

    grid = _grid(pair.projection)
    tilts = _sign_changes(turning, np.union1d(grid, grid - distance))
    rates, _ = pulls(tilts)
    if not np.any(rates > 0):
        raise ValueError(
            f"With a_plus = {pair.a_plus:g} and a_minus = {pair.a_minus:g} at distance "
            f"{distance:g}, E[g h] exceeds rounding nowhere along the centre: v shrinks to 0. "
            "Raise a_plus or the distance."
        )
    best = int(np.argmax(rates * np.hypot(1.0, tilts)))
    return Growth(float(rates[best]), float(tilts[best]))


def weight_decay_attractor(
    pair: TwoClusters, *, decay: float
) -> tuple[Float[Array, " tokens"], float]:
    r"""The isolated fixed point $(v, \xi)$ that Lemma 2 has under weight decay.

    What Theorem 3 looks for does exist where $\lambda (v, \xi)$ balances the gradient: the growth
    of `growth` stops at $\|v\| =$ `rate / decay` (E19).
    """
    if not decay > 0:
        raise ValueError(f"Without decay there is no attractor (E19); got decay = {decay:g}.")
    rate, tilt = growth(pair)
    length = rate / decay
    return length * pair.centre / np.linalg.norm(pair.centre), length * tilt


def _level_slope(rho: Array, projection: AbstractProjection) -> Array:
    q = clusters.level(rho, projection)
    return np.asarray(1 - q * projection.density(rho) / projection.cdf(rho))


def _grid(projection: AbstractProjection) -> Array:
    """Points dense on every scale of the density."""
    scales = np.array([s for s in projection.landmarks if 0 < s < np.inf])
    right = np.geomspace(scales.min() / 100, 4 * scales.max(), 300)
    return np.concatenate([-right[::-1], [0.0], right])


def _sign_changes(function: ScalarFunction, grid: Array) -> Array:
    """Roots of `function`, at most one between neighbouring points of `grid`."""
    values = function(grid)
    clear = np.abs(values) > 1e-11  # a flat stretch must not look like a row of roots
    grid, signs = grid[clear], np.sign(values[clear])

    def at(x: float) -> float:
        return float(function(np.array([x]))[0])

    spans = zip(pairwise(grid.tolist()), pairwise(signs.tolist()), strict=True)
    roots = [brentq(at, *span, xtol=1e-15, rtol=1e-15) for span, (s, t) in spans if s != t]
    return np.array(roots)

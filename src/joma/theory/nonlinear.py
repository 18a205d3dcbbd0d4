r"""Nonlinear activation with attention: salient tokens first, the rest later (Section 4, Eqn. 6).

$\dot v_j = (\mu_j - v_j)e^{v_j^2/2}$ decouples, and is easy in the *log progress*
$L_j = \ln(1/\delta_j)$, $\delta_j = 1 - v_j/\mu_j$. Its speed is $e^{v_j^2/2}$, so the time to
reach $L$ is one integral, `time_to_reach`, and $L(t)$ is its inverse, `progress`. $\delta$ soon
falls below what float64 resolves in $v$ and is never formed from it.

Eqn. 6 is a model: it does not follow from Theorem 3 (E20). Keywords:

    normaliser     $A$; `temperature` $T$ and `kappa` turn $e^{v^2/2}$ into $e^{\kappa v^2/(2T^2)}$
    v0             start of the weights; $v_0/\mu < 1$, any sign
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from joma._core.typing import Array, Form
from joma.theory.linear import PerToken
from joma.theory.roots import solve_increasing

PAPER = {"Eqn. 6": "solution", "Eqn. 79": "time_to_reach"}

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = (1 + _NODES) / 2, _WEIGHTS / 2  # on [0, 1]
_PANELS = 6
_ROUNDING = 2 * np.finfo(float).eps
_TAIL = 9.5  # exp(-9.5**2 / 2) is 3e-20: no float64 sum notices what lies beyond


def velocity(
    v: Float[Array, "*times tokens"],
    mu: Float[Array, " tokens"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
) -> Float[Array, "*times tokens"]:
    r"""Right-hand side of Eqn. 6, $\dot v = (\mu - v)\circ e^{v^2/2}$."""
    return (mu - v) * np.exp(kappa * v**2 / (2 * temperature**2)) / normaliser


def largest_euler_step(
    mu: Float[Array, " tokens"], *, temperature: float = 1.0, kappa: float = 1.0
) -> float:
    r"""Learning rate $2e^{-\max\mu^2/2}$ above which Euler steps of Eqn. 6 do not settle at $\mu$.

    Example:
        >>> round(largest_euler_step(np.array([3.69])), 4)
        0.0022
    """
    return float(2 * np.exp(-kappa * np.max(mu**2) / (2 * temperature**2)))


def time_to_reach(
    progress: Float[Array, "*#shape"], mu: Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    r"""Time for Eqn. 6 to bring $\delta$ from 1 to $e^{-L}$: $F$ of Eqn. 79 with $r = 1 - e^{-L}$.

    $\int_0^L e^{-\mu^2(1-e^{-s})^2/2}ds$ by quadrature, good to the last digits. Even in $\mu$.
    Negative for $L < 0$, where $v$ starts on the other side of 0.
    """
    progress, mu = np.broadcast_arrays(progress, mu)
    forward = np.maximum(progress, 0.0)
    time: Array = np.exp(-(mu**2) / 2) * forward + remainder(forward, mu)
    if np.any(progress < 0):
        time -= _time_from_below(np.maximum(-progress, 0.0), mu)
    return time


def remainder(
    progress: Float[Array, "*#shape"], mu: Float[Array, "*#shape"], *, form: Form = "corrected"
) -> Float[Array, "*#shape"]:
    r"""$R = F - e^{-\mu^2/2}L$ for $L \ge 0$, the bounded part of the time in Eqn. 88.

    Integrated as it stands, not subtracted, so it keeps its digits when $L$ is large or infinite.
    The text after Eqn. 88 prints $e^{-\mu^2}$, and that difference is not bounded (E9).
    """
    if form == "printed":
        leading: Array = np.exp(-(mu**2)) * progress
        return time_to_reach(progress, mu) - leading
    reached, mu = np.broadcast_arrays(-np.expm1(-progress), mu)
    a = mu[..., None] ** 2 / 2

    def integrand(x: Array) -> Array:
        gaussian, rest = np.exp(-a * x**2), -np.expm1(-a * (1 - x) * (1 + x))
        return np.asarray(gaussian * rest / (1 - x))

    return _integrate(integrand, np.minimum(reached, _tail(mu)))


def remainder_limit(mu: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$R_\infty(\mu)$, what `remainder` tends to when the token has converged.

    Quadrature is used. With $a = \mu^2/2$ there is a closed form,
    $e^{-a}[a\,{}_2F_2(1,1;\frac32,2;a) + \frac12(\mathrm{Ei}(a) - \ln a - \gamma)]$, and for large
    $\mu$ it is $\sqrt{\pi/2}/\mu + 1/\mu^2$.
    """
    return remainder(np.full_like(mu, np.inf), mu)


def log_progress(
    v: Float[Array, "*#shape"], mu: Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    r"""$L = \ln(1/\delta) = -\ln(1 - v/\mu)$ of weights that have not converged.

    For starting points. A trajectory comes from `progress`: here $L$ above 36 is lost in `v`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(v == 0, 0.0, v / mu)
    if not np.all(ratio < 1):
        worst = float(np.max(ratio)) if not np.any(np.isnan(ratio)) else np.nan
        raise ValueError(
            f"v / mu must be below 1, on the near side of the fixed point; got max v / mu ="
            f" {worst:.6g}. Use simulate for starts beyond it."
        )
    return -np.log1p(-ratio)


def progress(
    t: Float[Array, " times"],
    mu: Float[Array, " tokens"],
    *,
    v0: PerToken = 0.0,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
) -> Float[Array, "times tokens"]:
    r"""Exact $L(t) = \ln(1/\delta)$ under Eqn. 6.

    For large $\mu$ it is ill-conditioned in $t$ ($6\cdot10^7$ at $\mu = 10$, $L = 1$); there ask
    for `time_to_reach` instead. `inf` where $L$ exceeds the largest float ($\mu > 37$).

    Raises:
        ValueError: If a time is negative or not finite, or a start is at or beyond $\mu$.
    """
    if not np.all((t >= 0) & np.isfinite(t)):
        raise ValueError(f"t must be finite and not negative; got {t.min():.6g} to {t.max():.6g}.")
    m = np.abs(mu) * np.sqrt(kappa) / temperature
    start = log_progress(np.broadcast_to(np.asarray(v0, dtype=float), mu.shape), mu)
    target = t[:, None] / normaliser + time_to_reach(start, m)
    shape = target.shape
    m, start, late = (np.broadcast_to(x, shape).ravel() for x in (m, start, remainder_limit(m)))
    return _invert(target.ravel(), m, start, late).reshape(shape)


def solution(
    t: Float[Array, " times"],
    mu: Float[Array, " tokens"],
    *,
    v0: PerToken = 0.0,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
) -> Float[Array, "times tokens"]:
    r"""Exact $v(t)$ of Eqn. 6, $v = \mu(1 - e^{-L})$ with $L$ from `progress`.

    Example:
        >>> solution(np.array([0.5, 1.0, 3.0]), np.array([1.0, 2.0])).round(6)
        array([[0.40273 , 0.874448],
               [0.666235, 1.667951],
               [0.98313 , 2.      ]])
    """
    reached = progress(t, mu, v0=v0, normaliser=normaliser, temperature=temperature, kappa=kappa)
    return -mu * np.expm1(-reached)


def simulate(
    t: Float[Array, " times"],
    mu: Float[Array, " tokens"],
    *,
    v0: PerToken = 0.0,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    rtol: float = 1e-10,
) -> Float[Array, "times tokens"]:
    """$v$ at increasing times from an ODE solver that knows Eqn. 6 only: the judge of `solution`.

    LSODA, because the salient components relax at rate `exp(mu**2 / 2)` and make the system stiff
    well before the slow ones move. Any start is allowed, also beyond the fixed point.
    """
    result = solve_ivp(
        lambda _, v: velocity(v, mu, normaliser=normaliser, temperature=temperature, kappa=kappa),
        (0.0, float(t[-1])),
        np.broadcast_to(np.asarray(v0, dtype=float), mu.shape),
        t_eval=t,
        method="LSODA",
        rtol=rtol,
        atol=1e-13,
    )
    if not result.success:
        raise RuntimeError(f"Eqn. 6 did not integrate to t = {t[-1]:.6g}: {result.message}")
    return np.asarray(result.y.T)


def linear_attention_time(
    progress: Float[Array, "*#shape"], mu: Float[Array, "*#shape"], *, c: float
) -> Float[Array, "*#shape"]:
    r"""Time to reach $L$ from $v = 0$ under linear attention, $\dot v = (\mu - v)\sqrt{v^2 + c}$.

    $c = z_0^2 - v_0^2 > 0$ is the invariant of Theorem 1. The paper says "the derivation is similar
    and simpler" and leaves it out; here the integral is elementary.
    """
    rate = linear_attention_rate(mu, c=c)
    v = -mu * np.expm1(-progress)
    gain = (rate * np.sqrt(v**2 + c) + mu * v + c) / (np.sqrt(c) * rate + c)
    length: Array = progress + np.log(gain)
    return length / rate


def linear_attention_rate(mu: Float[Array, "*shape"], *, c: float) -> Float[Array, "*shape"]:
    r"""$dL/dt$ near convergence under linear attention, $\sqrt{\mu^2 + c}$; not $e^{\mu^2/2}$."""
    if c <= 0:
        raise ValueError(f"c = z0**2 - v0**2 must be positive for linear attention; got {c:.6g}.")
    return np.hypot(mu, np.sqrt(c))


def _invert(target: Array, mu: Array, start: Array, late: Array) -> Array:
    """The `progress` whose `time_to_reach` is `target`, all flat."""
    with np.errstate(over="ignore", invalid="ignore"):
        slowest = np.exp(mu**2 / 2)  # time per progress is between 1 / slowest and 1
        ahead = np.fmax(target, (target - late) * slowest)
        bound = np.minimum(np.fmax(ahead, target * slowest), np.finfo(float).max)
    later = target >= 0
    lower, upper = np.where(later, ahead, start), np.where(later, bound, target)

    def propose(x: Array, active: Array) -> tuple[Array, Array]:
        m = mu[active]
        v = -m * np.expm1(-x)
        lacking = target[active] - time_to_reach(x, m)
        # Below this the quadrature's own rounding shows, and chasing it would take long.
        lacking[np.abs(lacking) <= _ROUNDING * np.abs(target[active])] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            return -lacking, _bend(lacking * np.exp(v**2 / 2), v * m * np.exp(-x))

    # The time is concave in L above 0 and convex below: from these ends Newton does not overshoot.
    return solve_increasing(propose, lower, upper, np.where(later, lower, upper))


def _bend(newton: Array, decay: Array) -> Array:
    """A Newton step corrected for a slope that decays exponentially at rate `decay`.

    Plain Newton crawls through the Gaussian tail of `time_to_reach` when `mu` is large.
    """
    y = newton * decay
    with np.errstate(divide="ignore", invalid="ignore"):
        return newton * np.where(np.abs(y) < 1e-5, 1 + y / 2, -np.log1p(-y) / y)


def _time_from_below(depth: Array, mu: Array) -> Array:
    r"""Time from $L = -$`depth` to 0."""

    def integrand(u: Array) -> Array:
        return np.exp(-0.5 * (mu[..., None] * np.expm1(u)) ** 2)

    return _integrate(integrand, np.minimum(depth, np.log1p(_tail(mu))), panels=2 * _PANELS)


def _tail(mu: Array) -> Array:
    with np.errstate(divide="ignore"):
        return _TAIL / np.abs(mu)


def _integrate(integrand: Callable[[Array], Array], upper: Array, panels: int = _PANELS) -> Array:
    """Gauss-Legendre from 0 to `upper`, which is at most ten standard deviations wide."""
    width = np.asarray(upper / panels)
    total = np.zeros(width.shape)
    for panel in range(panels):
        total += integrand(width[..., None] * (panel + _NODES)) @ _WEIGHTS
    return total * width

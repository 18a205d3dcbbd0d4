r"""Linear activation, exp attention, one hidden node: winner takes all (Section 3.1, Theorem 2).

In the coordinate $\mathrm{erf}(v_l/(s\sqrt2))$, $s = T/\sqrt\kappa$, every token moves at constant
speed towards $\pm1$, which is $v_l = \pm\infty$. The first to arrive ends the flow. Keywords:

    normaliser     $A$, constant; `temperature` $T$ of $\sigma(z/T)$; `kappa` is $\eta_z/\eta_w$
    v0, c          start of the weights and constant of Theorem 1, $z = \kappa v^2/(2T) + c$
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.special import erf, erfc, erfinv, log_ndtr, logsumexp, ndtri_exp

from joma._core.typing import Array, Form
from joma.theory.roots import solve_increasing

PAPER = {"Eqn. 3": "velocity", "Theorem 2": "solution", "Eqn. 4": "invariant"}

PerToken: TypeAlias = Float[Array, " tokens"] | float
"""One number per token, or one for all."""


def logits(
    v: Float[Array, "*times tokens"],
    *,
    temperature: float = 1.0,
    kappa: float = 1.0,
    c: PerToken = 0.0,
) -> Float[Array, "*times tokens"]:
    r"""Attention logits $z = \kappa v^2/(2T) + c$ that belong to the weights (Theorem 1)."""
    return kappa * v**2 / (2 * temperature) + c


def velocity(
    v: Float[Array, "*times tokens"],
    delta: Float[Array, " tokens"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    c: PerToken = 0.0,
    form: Form = "corrected",
) -> Float[Array, "*times tokens"]:
    r"""Right-hand side of Eqn. 3, $\dot v = \Delta\circ e^{z/T}/A$.

    The paper prints it without $1/A$ (E3).
    """
    z = logits(v, temperature=temperature, kappa=kappa, c=c)
    flow = delta * np.exp(z / temperature)
    return flow if form == "printed" else flow / normaliser


def blowup_times(
    delta: Float[Array, " tokens"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: PerToken = 0.0,
    c: PerToken = 0.0,
) -> Float[Array, " tokens"]:
    r"""Time at which each token would diverge if it were alone; `inf` where $\Delta_l = 0$.

    From rest it is $As\sqrt{\pi/2}/|\Delta_l|$. The paper's remark that the winner tends to
    infinity leaves out that it does so in finite time (E17).
    """
    return _race(delta, normaliser, temperature, kappa, v0, c).ends


def blowup_time(
    delta: Float[Array, " tokens"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: PerToken = 0.0,
    c: PerToken = 0.0,
) -> float:
    """Time at which the first token, the winner, diverges and the flow ends.

    Example:
        >>> round(blowup_time(np.array([1.0, 0.5])), 6)
        1.253314
    """
    return _race(delta, normaliser, temperature, kappa, v0, c).end


def solution(
    t: Float[Array, " times"],
    delta: Float[Array, " tokens"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: PerToken = 0.0,
    c: PerToken = 0.0,
) -> Float[Array, "times tokens"]:
    r"""Exact $v(t)$ of Eqn. 3 (Theorem 2).

    The last digits before the blow-up are lost in `t` itself; `near_blowup` asks for the
    remaining time instead.

    Args:
        t: Times to evaluate, each in `[0, blowup_time(delta))`.
        delta: Saliency of each token, $\Delta_{lm}$ of Theorem 2.
        normaliser: $A$ of Eqn. 1.
        temperature: $T$.
        kappa: Learning-rate ratio $\eta_z/\eta_w$.
        v0: Weights at $t = 0$.
        c: $z(0) - \kappa v_0^2/(2T)$.

    Raises:
        ValueError: If a time is negative, or at or past the blow-up.
    """
    race = _race(delta, normaliser, temperature, kappa, v0, c)
    if not np.all((t >= 0) & (t < race.end)):
        raise ValueError(
            f"t must lie in [0, {race.end:.6g}), before the winner diverges;"
            f" got min t = {t.min():.6g}, max t = {t.max():.6g}."
        )
    return race.at_time(t)


def near_blowup(
    eps: Float[Array, " times"],
    delta: Float[Array, " tokens"],
    *,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: PerToken = 0.0,
    c: PerToken = 0.0,
) -> Float[Array, "times tokens"]:
    r"""Exact $v$ when the fraction `eps` of the time to the blow-up is left, $t = (1-\epsilon)T^*$.

    Full precision for any `eps` in `[0, 1]`. At `eps = 0` the winners are infinite and the losers
    stand where they freeze, from rest at $s\sqrt2\,\mathrm{erf}^{-1}(\Delta_l/\max|\Delta|)$.

    Example:
        >>> near_blowup(np.array([0.0]), np.array([1.0, 0.8])).round(6)
        array([[     inf, 1.281552]])
    """
    if not np.all((eps >= 0) & (eps <= 1)):
        raise ValueError(
            "eps is the part of the time to the blow-up that is left and must lie in [0, 1];"
            f" got min eps = {eps.min():.6g}, max eps = {eps.max():.6g}."
        )
    race = _race(delta, normaliser, temperature, kappa, v0, c)
    _require_winner(race)
    with np.errstate(divide="ignore"):
        return race.at_gap(np.log(eps))


def invariant(
    v: Float[Array, "*times tokens"],
    delta: Float[Array, " tokens"],
    *,
    temperature: float = 1.0,
    kappa: float = 1.0,
    form: Form = "corrected",
) -> Float[Array, "*times tokens"]:
    r"""What all tokens share at each time, from rest: $\mathrm{erf}(v_l/(s\sqrt2))/\Delta_l$.

    It equals $\sqrt{2/\pi}\,t/(As)$. Eqn. 4 prints $\mathrm{erf}(v_l/2)$, which the tokens do not
    share (E2). A token with $\Delta_l = 0$ gives `nan`.
    """
    width = 2.0 if form == "printed" else np.sqrt(2)
    place: Array = erf(v * np.sqrt(kappa) / (width * temperature))
    return place / np.where(delta == 0, np.nan, delta)


def softmax_log_gap(
    t: Float[Array, " times"],
    delta: Float[Array, " tokens"],
    *,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: PerToken = 0.0,
    c: PerToken = 0.0,
) -> Float[Array, " times"]:
    r"""How far the race has come at time `t` under softmax attention: $\ln(1 - s\max|\Delta|)$.

    It is $\ln\epsilon$ of `near_blowup`: a common normaliser changes the clock, not the path.
    $e^{z_l/T}d\tau = dv_l/\Delta_l$ makes the clock exact, $t = \sum_l (v_l - v_l(0))/\Delta_l$.
    """
    if not np.all((t >= 0) & np.isfinite(t)):
        raise ValueError(f"t must be finite and not negative; got {t.min():.6g} to {t.max():.6g}.")
    race = _race(delta, 1.0, temperature, kappa, v0, c)
    _require_winner(race)
    stands = delta == 0  # such a token holds attention without moving

    def propose(gap: Array, active: Array) -> tuple[Array, Array]:
        v = race.at_gap(-gap)  # [times, tokens]
        log_exp = logits(v, temperature=temperature, kappa=kappa, c=c) / temperature
        tau = -race.end * np.expm1(-gap)
        spent = (v - race.start) / np.where(stands, 1.0, delta)
        spent += np.exp(np.where(stands, log_exp, -np.inf)) * tau[:, None]
        excess = spent.sum(-1) - t[active]
        rate = race.end * np.exp(logsumexp(log_exp, axis=-1) - gap)
        return excess, -excess / rate

    # No token gets more than all of the attention, so the winner is at most this far ahead.
    furthest = -race.log_gap(np.abs(delta[race.ends.argmin()]) * t)
    return -solve_increasing(propose, np.zeros_like(furthest), furthest, furthest)


def softmax_solution(
    t: Float[Array, " times"],
    delta: Float[Array, " tokens"],
    *,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: PerToken = 0.0,
    c: PerToken = 0.0,
) -> Float[Array, "times tokens"]:
    r"""Exact $v(t)$ of $\dot v_l = \Delta_l\,\mathrm{softmax}(z/T)_l$, for all times.

    The paper's remark after Theorem 2 says that the theorem also applies here. Its invariant does;
    its blow-up does not: the winner grows like $\Delta_{\max}t$ and the losers freeze (E17).
    """
    gap = softmax_log_gap(t, delta, temperature=temperature, kappa=kappa, v0=v0, c=c)
    return _race(delta, 1.0, temperature, kappa, v0, c).at_gap(gap)


def linear_attention(
    t: Float[Array, " times"],
    delta: Float[Array, " tokens"],
    *,
    z0: PerToken,
    normaliser: float = 1.0,
    temperature: float = 1.0,
    kappa: float = 1.0,
    v0: PerToken = 0.0,
) -> tuple[Float[Array, "times tokens"], Float[Array, "times tokens"]]:
    r"""Exact $v$ and $z$ for linear attention: from $v = 0$, $v = z_0\sinh$ and $z = z_0\cosh$.

    The argument is $\sqrt\kappa\,\Delta t/(AT)$. There is no blow-up, and from $z_0 = v_0 = 0$
    nothing moves (E16).
    """
    angle = np.sqrt(kappa) * np.outer(t, delta) / (normaliser * temperature)
    v = v0 * np.cosh(angle) + z0 / np.sqrt(kappa) * np.sinh(angle)
    z = z0 * np.cosh(angle) + v0 * np.sqrt(kappa) * np.sinh(angle)
    return v, z


@dataclass(frozen=True, kw_only=True)
class _Race:
    """Tokens that walk at constant speed from `erf(start / width)` to the line at +1 or -1."""

    start: Float[Array, " tokens"]
    side: Float[Array, " tokens"]  # +1 or -1: which line
    speed: Float[Array, " tokens"]
    width: float  # v = width * erfinv(place)

    @property
    def ends(self) -> Float[Array, " tokens"]:
        with np.errstate(divide="ignore"):
            return erfc(self.side * self.start / self.width) / self.speed

    @property
    def end(self) -> float:
        return float(self.ends.min())

    def at_time(self, t: Float[Array, " times"]) -> Float[Array, "times tokens"]:
        with np.errstate(divide="ignore", invalid="ignore"):
            log_missing = np.log(self.speed * (self.ends - t[:, None]))
        return self._v(t, log_missing)

    def at_gap(self, log_gap: Float[Array, " times"]) -> Float[Array, "times tokens"]:
        """State when `exp(log_gap)` of the time to the end is left."""
        # The winner's first term is exactly zero, so its distance from the line keeps all digits.
        with np.errstate(divide="ignore", invalid="ignore"):
            behind_winner = np.log(self.speed * (self.ends - self.end))
            left = np.log(self.speed * self.end) + log_gap[:, None]
            log_missing = np.logaddexp(behind_winner, left)
        return self._v(-self.end * np.expm1(log_gap), log_missing)

    def log_gap(self, advance: Float[Array, " times"]) -> Float[Array, " times"]:
        """The `log_gap` at which the winner is `advance` ahead of its start."""
        winner = int(self.ends.argmin())
        start = -self.side[winner] * self.start[winner]
        stretch = np.sqrt(2) / self.width
        log_missing = log_ndtr((start - advance) * stretch)
        return np.asarray(log_missing - log_ndtr(start * stretch))

    def _v(self, t: Array, log_missing: Array) -> Array:
        walked = self.speed * t[:, None]
        place = erf(self.side * self.start / self.width) + walked
        passed = erfc(-self.side * self.start / self.width) + walked  # 1 + place, near -1
        # erfinv near +-1 has lost the digits that the distance from the line still holds.
        near, far = _erfcinv(log_missing), -_erfcinv(np.log(passed))
        v = self.width * np.select([place > 0.5, place < -0.5], [near, far], erfinv(place))
        return np.where(self.speed == 0, self.start, self.side * v)


def _race(
    delta: Array,
    normaliser: float,
    temperature: float,
    kappa: float,
    v0: PerToken,
    c: PerToken,
) -> _Race:
    scale = temperature / np.sqrt(kappa)
    speed = np.sqrt(2 / np.pi) * np.abs(delta) * np.exp(np.asarray(c) / temperature)
    return _Race(
        start=np.broadcast_to(np.asarray(v0, dtype=float), delta.shape),
        side=np.where(delta < 0, -1.0, 1.0),
        speed=speed / (normaliser * scale),
        width=float(scale * np.sqrt(2)),
    )


def _require_winner(race: _Race) -> None:
    if not np.isfinite(race.end):
        raise ValueError("Every delta is 0, so nothing moves; give at least one token a saliency.")


def _erfcinv(log_x: Array) -> Array:
    return np.asarray(-ndtri_exp(log_x - np.log(2)) / np.sqrt(2))

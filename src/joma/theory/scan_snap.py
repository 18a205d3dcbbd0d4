r"""Scan&Snap: how one attention head picks its distinct tokens, then freezes (Theorems 3 and 4).

One layer, no MLP, normalised context $f_n$, and a decoder $Y$ that learns much faster than the
attention logits $z$ ($\eta_Y \gg \eta_Z$). Token $l$ has probability $p_l$ in the context of class
$n$. The clock is $B_n = \eta_Z\int\xi_n$, what the class has pulled so far: Theorem 3 gives the
logits at a given $B$, Theorem 4 gives $B$ at a given time. Both as on the slides of the talk.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import softmax, wrightomega

from joma._core.typing import Array, Form

PAPER = {
    "Scan&Snap Theorem 3": "relative_gain",
    "Scan&Snap Theorem 4": "pull",
}


def squared_attention(
    z: Float[Array, "times tokens"], p: Float[Array, " tokens"]
) -> Float[Array, "times tokens"]:
    r"""$f_{nl}^2 = p_l^2 e^{2z_l} / \sum_{l'} p_{l'}^2 e^{2z_{l'}}$, and $dz_l/dB = f_{nl}^2$."""
    return softmax(2 * (z + np.log(p)), axis=-1)


def relative_gain(
    z: Float[Array, "times tokens"], p: Float[Array, " tokens"], *, token: int, rival: int
) -> Float[Array, " times"]:
    r"""$r_{l/l'} = f_l^2/f_{l'}^2 - 1$, how far a token is ahead of a rival (Theorem 3).

    Along the flow it is $r(0)\,\chi_l$ with $\chi_l = e^{2 z_l}$: the winner's own logit decides.
    """
    ahead = 2 * (z[:, token] - z[:, rival] + np.log(p[token] / p[rival]))
    return np.asarray(np.expm1(ahead))


def gain_factor(z: Float[Array, "times tokens"]) -> Float[Array, "times tokens"]:
    r"""$\chi_l = e^{2 z_l}$ of Theorem 3."""
    return np.asarray(np.exp(2 * z))


def gain_bounds(
    pulled: Float[Array, " times"], p: Float[Array, " tokens"]
) -> tuple[Float[Array, " times"], Float[Array, " times"]]:
    r"""$e^{2 f_{l_0}^2(0) B} \le \chi_{l_0} \le e^{2B}$ for the dominant token (Theorem 3)."""
    start = p.max() ** 2 / (p @ p)
    return np.exp(2 * start * pulled), np.exp(2 * pulled)


def invariant(
    z: Float[Array, "times tokens"], p: Float[Array, " tokens"]
) -> Float[Array, "times tokens"]:
    r"""$(1 - e^{-2z_l})/p_l^2$, the same for every distinct token of the class.

    Scan&Snap's analogue of the invariant of Theorem 2. Its common value is $2\tau$.
    """
    return np.asarray(-np.expm1(-2 * z) / p**2)


def distinct_logits(
    pulled: Float[Array, " times"], p: Float[Array, " tokens"]
) -> Float[Array, "times tokens"]:
    r"""Logits $z_l$ after the class has pulled $B$, from $z = 0$; all its tokens distinct.

    $e^{-2 z_l} = 1 - 2 p_l^2\tau$ with $\tau$ from $\sum_l z_l = B$. Solved in the winner's logit,
    because $\tau$ itself crowds against its limit $1/(2 p_{\max}^2)$.
    """
    if np.any(pulled < 0):
        raise ValueError(f"B grows from 0; got min B = {pulled.min():.6g}.")
    ratio = (p / p.max()) ** 2
    loses = ratio < 1

    def logits(winner: float) -> Array:
        shrunk = np.where(loses, ratio, 0.0) * np.expm1(-2 * winner)
        return np.asarray(np.where(loses, -0.5 * np.log1p(shrunk), winner))

    def solved(total: float) -> Array:
        if total == 0:
            return np.zeros_like(p)
        winner = brentq(
            lambda w: float(logits(w).sum()) - total, 0.0, total, xtol=1e-15, rtol=1e-15
        )
        return logits(winner)

    return np.array([solved(total) for total in pulled.tolist()]).reshape(-1, len(p))


def clock(z: Float[Array, "times tokens"], p: Float[Array, " tokens"]) -> Float[Array, " times"]:
    r"""$\tau$, half the common value of `invariant`; read off the most frequent token."""
    winner = int(np.argmax(p))
    return np.asarray(invariant(z, p)[:, winner] / 2)


def frozen_logits(p: Float[Array, " tokens"]) -> Float[Array, " tokens"]:
    r"""Where losers freeze, $-\frac12\ln(1 - p_l^2/p_{\max}^2)$; `inf` for the winner."""
    with np.errstate(divide="ignore"):
        return np.asarray(-0.5 * np.log1p(-((p / p.max()) ** 2)))


@dataclass(frozen=True, kw_only=True)
class Decoder:
    r"""Softmax decoder on orthonormal $f_n$, from $Y(0) = 0$: its margin has a closed form."""

    vocabulary: int
    """Number of outputs, $M$."""
    classes: int
    """Number of equiprobable next tokens that occur, $K$."""
    rate: float = 1.0
    r"""Learning rate $\eta_Y$."""

    def __post_init__(self) -> None:
        if self.classes < 1 or self.vocabulary < 2 or not self.rate > 0:
            raise ValueError(
                "A decoder needs at least one class, two outputs and a positive rate; "
                f"got {self.classes}, {self.vocabulary} and {self.rate:g}."
            )

    def margin(self, t: Float[Array, " times"]) -> Float[Array, " times"]:
        r"""Logit lead $u$ of the right output: $e^u - 1 + (M-1)u = M\eta_Y t/K$.

        Wright's omega function starts it, Newton steps on `expm1` finish it.
        """
        if np.any(t < 0):
            raise ValueError(f"t must not be negative; got min t = {t.min():.6g}.")
        rest = self.vocabulary - 1
        y = self.vocabulary * self.rate * t / self.classes
        late = np.log(rest) + np.log(wrightomega((1 + y) / rest - np.log(rest)))
        u = np.where(y < 1e-3 * self.vocabulary, y / self.vocabulary, late)
        for _ in range(4):
            u = u - (np.expm1(u) + rest * u - y) / (np.exp(u) + rest)
        return np.asarray(u)

    def signal(self, t: Float[Array, " times"]) -> Float[Array, " times"]:
        r"""$\gamma = (M-1)u/(e^u + M - 1)$, what the decoder sends back to the attention."""
        u, rest = self.margin(t), self.vocabulary - 1
        return np.asarray(rest * u / (np.exp(u) + rest))

    def total_signal(self, t: Float[Array, " times"]) -> Float[Array, " times"]:
        r"""$\int_0^t\gamma = \frac{K(M-1)}{2M\eta_Y} u^2$."""
        scale = self.classes * (self.vocabulary - 1) / (2 * self.vocabulary * self.rate)
        return np.asarray(scale * self.margin(t) ** 2)

    @property
    def snapping_time(self) -> float:
        r"""$t_0 = 2K\ln M/\eta_Y$, where scanning turns into snapping."""
        return float(2 * self.classes * np.log(self.vocabulary) / self.rate)


def pull(
    t: Float[Array, " times"],
    decoder: Decoder,
    *,
    rate: float,
    c_0: float = 1.0,
    exponent: float = 4.0,
    form: Form = "corrected",
) -> Float[Array, " times"]:
    r"""$B_n(t) = \frac1p\ln(1 + \frac{p\eta_Z}{C_0}\int_0^t\gamma)$, both phases (Theorem 4).

    Scanning, $B$ grows by $2/p$ per unit of $\ln t$; snapping, like $\ln\ln t$. It rests on the
    premise $\xi_n = \gamma e^{pz}/C_0$ for the common token; small models measure exponents between
    0.2 and 1.8 (E26). The slide drops the factor $1/p$ (E14).

    Args:
        t: Times.
        decoder: The decoder that supplies $\gamma$.
        rate: Learning rate $\eta_Z$ of the attention logits.
        c_0: Constant $C_0$ of the premise.
        exponent: Exponent $p$ of the premise; 4 in Scan&Snap.
        form: `"printed"` evaluates $\ln(C_0 + 2K\frac{\eta_Z}{\eta_Y}\ln^2(M\eta_Y t/K))$.
    """
    if form == "corrected":
        return np.asarray(np.log1p(exponent * rate / c_0 * decoder.total_signal(t)) / exponent)
    lead = np.log(decoder.vocabulary * decoder.rate * t / decoder.classes)
    return np.asarray(np.log(c_0 + 2 * decoder.classes * rate / decoder.rate * lead**2))


def pull_per_log_time(
    t: Float[Array, " times"],
    decoder: Decoder,
    *,
    rate: float,
    c_0: float = 1.0,
    exponent: float = 4.0,
) -> Float[Array, " times"]:
    r"""$dB_n/d\ln t$: rises to $2/p$ while scanning, falls to 0 like $1/\ln t$ while snapping."""
    gain = rate / c_0
    slope = gain * decoder.signal(t) / (1 + exponent * gain * decoder.total_signal(t))
    return np.asarray(t * slope)

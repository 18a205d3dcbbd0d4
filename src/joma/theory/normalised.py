r"""Eqn. 6 with a common normaliser: attention turns sparse, then dense (Figure 4).

The figure's caption says Eqn. 6 and $\mathrm{softmax}(v^2)$. The curve comes from Euler steps of
$\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/3)$ and shows the entropy of that softmax (E13). The 3
is the `divisor`, $T'$ below.

The normaliser is a change of clock, $dt = Z\,d\tau$: in $\tau$ the dynamics is Eqn. 6, and since
$e^{v_j^2/T'}d\tau = dL_j$, the clock is exact, $t = \sum_j (L_j - L_j(0))$.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import entr, softmax

from joma._core.typing import Array, Form
from joma.theory import nonlinear
from joma.theory.linear import PerToken
from joma.theory.roots import solve_increasing

PAPER = {"Figure 4": "entropy_curve"}

# sorted(3 * rand(10) + 1) in float32, torch seed 0: the authors' script; the paper does not say.
MU: Float[Array, " tokens"] = np.array(
    [
        1.265432357788086,
        1.3960914611816406,
        1.9222683906555176,
        2.3668839931488037,
        2.470280170440674,
        2.488769769668579,
        2.896918773651123,
        2.902235984802246,
        3.3046653270721436,
        3.6893341541290283,
    ]
)
MU.setflags(write=False)

V0 = 0.05  # this and the next three: the authors' script; not printed
ETA = 0.02
STEPS = 5000
DIVISOR = 3.0


def velocity(
    v: Float[Array, "*times tokens"], mu: Float[Array, " tokens"] = MU, *, divisor: float = DIVISOR
) -> Float[Array, "*times tokens"]:
    r"""$\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/T')$, with $T'$ the `divisor`."""
    return (mu - v) * softmax(v**2 / divisor, axis=-1)


def entropy(
    v: Float[Array, "*times tokens"], *, divisor: float = DIVISOR
) -> Float[Array, "*times"]:
    r"""Entropy of $\mathrm{softmax}(v^2/T')$ in nats; at $v = \mu$ it is the limit of the curve."""
    return np.asarray(entr(softmax(v**2 / divisor, axis=-1)).sum(-1))


def euler(
    mu: Float[Array, " tokens"] = MU,
    *,
    divisor: float = DIVISOR,
    v0: PerToken = V0,
    eta: float = ETA,
    steps: int = STEPS,
) -> Float[Array, "times tokens"]:
    """Euler steps as in the authors' script; row `n` is the state before step `n`."""
    v = np.empty((steps, len(mu)))
    v[0] = v0
    for n in range(1, steps):
        v[n] = v[n - 1] + eta * velocity(v[n - 1], mu, divisor=divisor)
    return v


def entropy_curve(*, form: Form = "corrected") -> Float[Array, " times"]:
    r"""The right panel of Figure 4: attention entropy before each of the 5000 steps.

    It falls to .9416 at step 669 and rises again to 1.549; its limit is 1.622. The caption's
    $\mathrm{softmax}(v^2)$, `form="printed"`, falls to .0003 and stays there (E13).
    """
    divisor = 1.0 if form == "printed" else DIVISOR
    return entropy(euler(divisor=divisor), divisor=divisor)


def rebound_time(mu: Float[Array, " tokens"] = MU, *, divisor: float = DIVISOR) -> float:
    r"""Time scale of the return to dense attention, $1/\min_j\mathrm{softmax}(\mu^2/T')_j$.

    Late, $L_j$ grows at the rate $\mathrm{softmax}(\mu^2/T')_j$: the least salient token is last.
    """
    return float(1 / softmax(mu**2 / divisor).min())


def clock(
    tau: Float[Array, " times"],
    mu: Float[Array, " tokens"] = MU,
    *,
    v0: PerToken = V0,
    divisor: float = DIVISOR,
) -> Float[Array, " times"]:
    r"""Time of the normalised dynamics when Eqn. 6 shows $\tau$: $t = \sum_j (L_j - L_j(0))$."""
    return _shown(path(tau, mu, v0=v0, divisor=divisor), mu, v0)


def path(
    tau: Float[Array, " times"],
    mu: Float[Array, " tokens"] = MU,
    *,
    v0: PerToken = V0,
    divisor: float = DIVISOR,
) -> Float[Array, "times tokens"]:
    r"""Log progress $L = \ln(1/\delta)$ when Eqn. 6 shows $\tau$; weights are $\mu(1 - e^{-L})$."""
    return nonlinear.progress(tau, mu, v0=v0, temperature=float(np.sqrt(divisor / 2)))


def tau_at(
    t: Float[Array, " times"],
    mu: Float[Array, " tokens"] = MU,
    *,
    v0: PerToken = V0,
    divisor: float = DIVISOR,
) -> Float[Array, " times"]:
    r"""The $\tau$ at which `clock` shows `t`."""
    if not np.all((t >= 0) & np.isfinite(t)):
        raise ValueError(f"t must be finite and not negative; got {t.min():.6g} to {t.max():.6g}.")

    def propose(tau: Array, active: Array) -> tuple[Array, Array]:
        reached = path(tau, mu, v0=v0, divisor=divisor)
        v = -mu * np.expm1(-reached)
        late = _shown(reached, mu, v0) - t[active]
        late[np.abs(late) <= 4 * np.finfo(float).eps * np.abs(reached).sum(-1)] = 0.0  # rounding
        return late, -late / np.exp(v**2 / divisor).sum(-1)

    # Every token weighs at least 1 in the normaliser, so the clock runs at least this fast.
    latest = t / len(mu)
    return solve_increasing(propose, np.zeros_like(t), latest, latest)


def solution(
    t: Float[Array, " times"],
    mu: Float[Array, " tokens"] = MU,
    *,
    v0: PerToken = V0,
    divisor: float = DIVISOR,
) -> Float[Array, "times tokens"]:
    """Exact $v(t)$ of the dynamics that Figure 4 takes Euler steps of.

    The entropy has its minimum .940723 at t = 13.396; the steps find .941570 at 13.38.
    """
    tau = tau_at(t, mu, v0=v0, divisor=divisor)
    return -mu * np.expm1(-path(tau, mu, v0=v0, divisor=divisor))


def _shown(reached: Array, mu: Array, v0: PerToken) -> Array:
    start = nonlinear.log_progress(np.broadcast_to(np.asarray(v0, dtype=float), mu.shape), mu)
    return np.asarray((reached - start).sum(-1))

"""Integrators for states that are dictionaries of arrays."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from joma._core.errors import JomaError
from joma._core.typing import Array

PAPER: dict[str, str] = {}  # tools; the paper has no item for them

State: TypeAlias = dict[str, Array]
"""Arrays by name. A path of states has the same names and a leading axis of times."""

Field: TypeAlias = Callable[[State], State]
"""Time derivative of a state; it may not depend on time itself."""


_STOPPED = (
    "The flow did not integrate to t = {:.6g}: {} It may blow up in finite time, as exp attention "
    "does; ask for earlier times."
)


def dop853(field: Field, start: State, times: Float[Array, " times"], rtol: float = 1e-11) -> State:
    """Adaptive, order 8: for smooth fields. The state at time 0 is `start`."""

    def rhs(_: float, y: Array) -> Array:
        rates = field(_unpacked(y, start))
        return np.concatenate([rates[name].ravel() for name in start])

    end = float(times[-1])
    y0 = np.concatenate([value.ravel() for value in start.values()])
    with np.errstate(over="ignore", invalid="ignore"):  # past a blow-up, which is reported below
        path = solve_ivp(rhs, (0.0, end), y0, "DOP853", t_eval=times, rtol=rtol, atol=1e-13)
    if not path.success:
        raise JomaError(_STOPPED.format(end, path.message))
    return _unpacked(path.y.T, start)


def rk4(field: Field, start: State, times: Float[Array, " times"], steps: int = 4000) -> State:
    """About `steps` equal steps of order 4: for fields with jumps, where adaptive ones stall."""
    state, now, end = start, 0.0, float(times[-1])
    path = []
    for time in times.tolist():
        count = int(np.ceil(steps * (time - now) / end)) if time > now else 0
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(count):
                state = _rk4_step(field, state, (time - now) / count)
        if not all(np.isfinite(value).all() for value in state.values()):
            raise JomaError(_STOPPED.format(end, f"it left the numbers before t = {time:.6g}."))
        now = time
        path.append(state)
    return {name: np.stack([state[name] for state in path]) for name in start}


def _rk4_step(field: Field, state: State, h: float) -> State:
    def along(rates: State, h: float) -> State:
        return {name: state[name] + h * rates[name] for name in state}

    k1 = field(state)
    k2 = field(along(k1, h / 2))
    k3 = field(along(k2, h / 2))
    k4 = field(along(k3, h))
    return along({n: (k1[n] + 2 * k2[n] + 2 * k3[n] + k4[n]) / 6 for n in state}, h)


def _unpacked(y: Array, like: State) -> State:
    ends = np.cumsum([value.size for value in like.values()])[:-1]
    parts = np.split(y, ends, axis=-1)
    return {
        name: part.reshape(*y.shape[:-1], *like[name].shape)
        for name, part in zip(like, parts, strict=True)
    }

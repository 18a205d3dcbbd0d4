"""When to look at a training run: plain functions of the optimiser step."""

from collections.abc import Callable
from typing import TypeAlias

from joma._core.errors import JomaError

Schedule: TypeAlias = Callable[[int], bool]
"""Whether to observe the state after this many updates; 0 is the untrained model."""

HORIZON = 2**20
"""Steps ahead that a schedule is searched for the next observation."""


def every(n: int) -> Schedule:
    """Steps 0, n, 2n and so on.

    Example:
        >>> [step for step in range(10) if every(4)(step)]
        [0, 4, 8]
    """
    if n < 1:
        raise JomaError(f"every must be at least 1 step; got {n}.")
    return lambda step: step % n == 0


def powers(until: int, then: int | None = None) -> Schedule:
    """Steps 0, 1, 2, 4, 8, … up to `until`, then every `then` steps: dense while most happens.

    Example:
        >>> [step for step in range(40) if powers(8, then=16)(step)]
        [0, 1, 2, 4, 8, 16, 32]
    """
    rest = every(until if then is None else then)
    if until < 1:
        raise JomaError(f"until must be at least 1 step; got {until}.")
    return lambda step: step & (step - 1) == 0 if step <= until else rest(step)


def following(schedule: Schedule, step: int) -> int | None:
    """The first step from `step` on at which `schedule` wants to look; None if it is far away.

    Example:
        >>> following(every(64), 65)
        128
    """
    return next((s for s in range(step, step + HORIZON) if schedule(s)), None)

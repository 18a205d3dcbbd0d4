"""Roots of increasing functions, many at once: Newton steps kept inside a shrinking bracket."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from joma._core.typing import Array

PAPER: dict[str, str] = {}  # a tool; the paper has no item for it

_ROUNDING = 2 * np.finfo(float).eps
_ITERATIONS = 400  # bisecting a bracket of floats down to one takes about a hundred


def solve_increasing(
    propose: Callable[[Array, Array], tuple[Array, Array]],
    lower: Float[Array, " roots"],
    upper: Float[Array, " roots"],
    start: Float[Array, " roots"],
) -> Float[Array, " roots"]:
    """The root of an increasing function inside each bracket.

    A step that leaves its bracket, or that is not half as long as the one before, is replaced by
    the middle of the bracket (the geometric one while the ends differ by more than a factor of
    four), so a wild proposal costs time but not the root. A step below rounding ends the search.

    Args:
        propose: Called with points and the indices of the roots they belong to; returns the sign
            of the function there (any number of that sign) and a step towards the root.
        lower: A point at or below each root.
        upper: A point at or above each root.
        start: Where to begin, inside the bracket.
    """
    root, lower, upper = start.copy(), lower.copy(), upper.copy()
    last_step = np.full(root.shape, np.inf)
    active: Int[Array, " active"] = np.flatnonzero(np.isfinite(root))
    for _ in range(_ITERATIONS):
        if not active.size:
            return root
        x = root[active]
        value, step = propose(x, active)
        if np.any(np.isnan(value)):
            raise FloatingPointError(f"The function is nan at {x[np.isnan(value)][0]:.6g}.")
        lower[active] = low = np.where(value <= 0, x, lower[active])
        upper[active] = high = np.where(value >= 0, x, upper[active])
        proposed = x + step
        trusted = (low <= proposed) & (proposed <= high) & (2 * np.abs(step) <= last_step[active])
        root[active] = moved = np.where(trusted, proposed, _middle(low, high))
        last_step[active] = np.abs(moved - x)
        active = active[np.abs(moved - x) > _ROUNDING * np.abs(moved)]
    raise RuntimeError(f"{active.size} of {root.size} roots are not found in their brackets.")


def _middle(low: Array, high: Array) -> Array:
    wide = (low > 0) & (high > 4 * low)
    with np.errstate(invalid="ignore"):
        return np.where(wide, np.sqrt(low) * np.sqrt(high), low + (high - low) / 2)

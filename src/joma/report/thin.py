"""Fewer points of a curve, and none of its peaks lost."""

from typing import Final

import numpy as np
from jaxtyping import Float, Int

from joma._core.typing import Array

RULE: Final = (
    "A curve with more points is cut into stretches of equally many; of each stretch its lowest "
    "and its highest value are kept, and of the whole the first and the last."
)


def kept(values: Float[Array, " times"], most: int) -> Int[Array, " kept"]:
    """Which points of a curve to draw, in order: at most `most`, extremes included.

    A stretch without any value keeps one point, so that a gap stays a gap.

    Example:
        >>> kept(np.array([0.0, 1.0, 9.0, 1.0, 0.0, 1.0, -9.0, 1.0, 2.0]), 6).tolist()
        [0, 2, 4, 5, 6, 8]
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretches = np.array_split(np.arange(1, count - 1), max(1, (most - 2) // 2))
    found = {0, count - 1}
    for stretch in stretches:
        here = values[stretch]
        if np.isnan(here).all():
            found.add(int(stretch[0]))
        else:
            found |= {int(stretch[np.nanargmin(here)]), int(stretch[np.nanargmax(here)])}
    return np.array(sorted(found))

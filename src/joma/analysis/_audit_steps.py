"""Steps that a regular series of revisions lacks, from the steps alone."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_WINDOW: Final = 4
_AGREE: Final = 3  # equal gaps nearby that make a rule


def missing_steps(steps: Sequence[float | int]) -> list[float]:
    """Steps that should be there, if the spacing around them goes on.

    Knows even spacing (1000, 2000, …) and powers (1, 2, 4, …). What comes before the first or
    after the last step cannot be known.

    Example:
        >>> missing_steps([0, 1, 2, 4, 16, 32, 64, 1000, 2000, 4000, 5000, 6000])
        [8.0, 3000.0]
    """
    steps = sorted(set(steps))
    gaps = [b - a for a, b in pairwise(steps)]
    ratios = [b / a if a > 0 else 0.0 for a, b in pairwise(steps)]
    found: list[float] = []
    for i, (a, b) in enumerate(pairwise(steps)):
        gap, ratio = _rule(gaps, i), _rule(ratios, i)
        if gap is not None:
            times = gaps[i] / gap
            if times == int(times) and times >= 2:
                found += [a + gap * k for k in range(1, int(times))]
        elif a > 0 and ratio is not None and ratio >= 2 and ratio == int(ratio):
            between = a * ratio
            skipped = []
            while between < b:
                skipped.append(between)
                between *= ratio
            found += skipped if between == b else []
    return [float(step) for step in found]


def _rule(values: Sequence[float | int], i: int) -> float | int | None:
    """The value that most of the neighbours of `i` share; `None` if they do not agree."""
    near = [*values[max(0, i - _WINDOW) : i], *values[i + 1 : i + 1 + _WINDOW]]
    if not near:
        return None
    value, count = Counter(near).most_common(1)[0]
    return value if count >= _AGREE and value > 0 else None

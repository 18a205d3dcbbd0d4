"""Distances along a training trajectory, and the places where it is left. Plain arrays."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array

JUMP: Final = 3.0
"""How many times the spread of its neighbours a revision may be away from the nearest of them.

A straight path gives 0.5, a random walk 0.7; a sketch of 32 numbers errs by 13 %.
"""
END_JUMP: Final = 10.0
"""The same for the first and the last revision, whose neighbours are all on one side. Training
moves fastest at its start: 3 would flag healthy runs."""
SWAP: Final = 0.85
"""Two revisions are exchanged if changing places shortens the way through both by this factor.

In order it lengthens the way: by 2 between neighbours on a straight path, by 1.4 on a random walk.
"""
_WORSE: Final = 1.1  # neither of two that change places may end farther off than this
_REACH: Final = 2  # neighbours on each side
_AROUND: Final = 4  # steps of the path on each side that say how long a step is here


def distances(sketches: Float[Array, "times buckets"]) -> Float[Array, "times times"]:
    """Distance of each pair of revisions; `nan` where one has no sketch."""
    delta = sketches[:, None] - sketches[None]
    return np.asarray(np.sqrt((delta * delta).sum(-1)))


def jumps(distance: Float[Array, "times times"], order: Sequence[int]) -> set[int]:
    """Which revisions lie off the path. The worst is taken out before the next is looked for."""
    path, found = list(order), set[int]()
    while len(path) > _REACH + 1:
        excess = {i: away(distance, path, at) for at, i in enumerate(path)}
        worst = max(excess, key=lambda i: excess[i])
        if excess[worst] <= 1.0:
            break
        found.add(worst)
        path.remove(worst)
    return found


def away(distance: Float[Array, "times times"], path: Sequence[int], at: int) -> float:
    """How far the revision at a place of the path is off it, in units of what is allowed.

    The spread of the neighbours is the third smallest of their six distances: one bad neighbour
    does not spoil it.
    """
    inside = 0 < at < len(path) - 1
    if inside:
        near = [*path[max(0, at - _REACH) : at], *path[at + 1 : at + 1 + _REACH]]
    else:  # one-sided: reach as far as in the middle
        near = [*(path[1 : 1 + 2 * _REACH] if at == 0 else path[-1 - 2 * _REACH : -1])]
    spread = sorted(float(distance[j, k]) for j, k in combinations(near, 2))
    least = min((float(distance[path[at], j]) for j in near), default=0.0)
    if not spread or least == 0.0:
        return 0.0
    typical = spread[(len(spread) - 1) // 2]
    return least / typical / (JUMP if inside else END_JUMP) if typical else math.inf


def strangers(distance: Float[Array, "times times"], path: Sequence[int]) -> set[int]:
    """Revisions that are far from every other one, wherever on the path they would stand.

    How long a step is here is said by the lower quartile: three strangers in a row make half of the
    steps around them long.
    """
    steps = [float(distance[a, b]) for a, b in pairwise(path)]
    found = set()
    for at, i in enumerate(path):
        around = steps[max(0, at - _AROUND) : at + _AROUND] or [math.inf]
        here = float(np.quantile(around, 0.25))
        nearest_one = min((float(distance[i, j]) for j in path if j != i), default=0.0)
        if nearest_one > JUMP * here:
            found.add(i)
    return found


def exchanged(distance: Float[Array, "times times"], path: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs that stand in each other's place, the clearest first; no revision is in two."""
    path, found = list(path), list[tuple[int, int]]()
    while True:
        free = [at for at, i in enumerate(path) if not any(i in pair for pair in found)]
        gains = {pair: _gain(distance, path, *pair) for pair in combinations(free, 2)}
        best = max(gains, key=lambda pair: gains[pair], default=None)
        if best is None or gains[best] <= 0.0:
            return found
        a, b = best
        found.append((path[a], path[b]))
        path[a], path[b] = path[b], path[a]


def nearest(distance: Float[Array, "times times"], i: int, others: Sequence[int]) -> int:
    """The revision whose weights are closest to those of `i`."""
    return min(others, key=lambda j: float(distance[i, j]))


def _gain(distance: Float[Array, "times times"], path: Sequence[int], a: int, b: int) -> float:
    """By how much changing places shortens the way, if it does by more than `SWAP`; else 0.

    The rule counts means, as an end has one neighbour where others have two: a stranger would
    seem to gain by going there. The gain counts sums: ends would win over what is beside them.
    """
    gain = now = then = 0.0
    ends = False
    for here, there in ((a, b), (b, a)):
        old = _reach(distance, path, path[here], here, there)
        new = _reach(distance, path, path[here], there, here)
        ends |= not old or not new
        was, will = (float(np.mean(seen)) if seen else 0.0 for seen in (old, new))
        if old and new and will > _WORSE * was:
            return 0.0
        now, then = now + was, then + will
        gain += sum(old) - max(1, len(old)) * will
    if ends and now > JUMP * then:
        return 0.0  # a stranger beside the end: nothing speaks for its neighbour's place
    return gain if then < SWAP * now else 0.0


def _reach(
    distance: Float[Array, "times times"], path: Sequence[int], i: int, at: int, but: int
) -> list[float]:
    """Distances of a revision to the neighbours of a place, leaving one place out."""
    near = [path[k] for k in (at - 1, at + 1) if 0 <= k < len(path) and k != but]
    return [float(distance[i, j]) for j in near]

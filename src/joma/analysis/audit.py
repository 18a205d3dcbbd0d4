"""What is wrong with a suite of checkpoints, from the fingerprints of its tensors.

Finds what users of public suites have reported: revisions that equal each other, files of another
step, weights that leave the trajectory, missing or exchanged steps, values that are not finite,
changes of shape or type, names that state no step.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from joma._core.typing import Array
from joma.analysis._audit_path import away, exchanged, jumps, nearest, strangers
from joma.analysis._audit_prints import Listed as Listed, Suite, suites, unreadable
from joma.analysis._audit_steps import missing_steps

_ENOUGH = 8  # revisions in which a tensor that rests once is an exception


class Defect(StrEnum):
    """What can be wrong."""

    DUPLICATE = "duplicate"
    """Two or more revisions hold the same weights."""
    SHARD = "shard of another step"
    """One file of a revision belongs to another revision, or to none."""
    TENSOR = "tensor off the trajectory"
    """Single tensors do not lie between their neighbours in time."""
    REVISION = "revision off the trajectory"
    """A whole revision does not lie between its neighbours in time."""
    ORDER = "out of order"
    """Revisions stand in each other's place."""
    MISSING = "missing step"
    NONFINITE = "not finite"
    MAKE = "shape or type changed"
    """Against most revisions; also a tensor that is absent."""
    NAME = "name without a step"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with the revisions it concerns."""

    defect: Defect
    run: str
    revisions: tuple[str, ...]
    message: str


def audit(table: pa.Table, listing: Sequence[Listed]) -> list[Finding]:
    """Everything that is wrong with the suites of a table of fingerprints.

    Args:
        table: Records, among them `fingerprint_…` as `joma audit` takes them.
        listing: Every revision, in order, also those whose names were not understood.
    """
    placed = {r.run for r in listing if r.problem is None}
    found = [
        Finding(Defect.NAME, r.run, (r.name,), r.problem)
        for r in listing
        # Every repository of the hub has a `main`: beside steps it is a copy of one of them.
        if r.problem is not None and not (r.name == "main" and r.run in placed)
    ]
    found += _unreadable(table, listing)
    for run, suite in suites(table, listing):
        found += _missing(run, [r for r in listing if r.run == run and r.problem is None])
        found += _of_suite(run, suite)
    return found


def _unreadable(table: pa.Table, listing: Sequence[Listed]) -> Iterator[Finding]:
    names = defaultdict(list)
    for r in listing:
        names[r.run, r.at].append(r.name)
    for run, step, reason in unreadable(table):
        if not reason.startswith("revision ") or " has no place " not in reason:
            yield Finding(Defect.UNREADABLE, run, tuple(names[run, step]), reason)


def _missing(run: str, listing: Sequence[Listed]) -> Iterator[Finding]:
    stages = defaultdict(list)
    for r in listing:
        stages[r.stage].append(r.at)
    for stage, steps in stages.items():
        lacking = missing_steps(steps)
        if lacking:
            where = f" of {stage}" if stage else ""
            shown = ", ".join(f"{step:g}" for step in lacking[:20])
            more = f" and {len(lacking) - 20} more" if len(lacking) > 20 else ""
            yield Finding(
                Defect.MISSING, run, (), f"Steps{where} that are not there: {shown}{more}."
            )


def _of_suite(run: str, suite: Suite) -> list[Finding]:
    found = [*_makes(run, suite), *_nonfinite(run, suite)]
    copies, same = _duplicates(run, suite)
    pairs = _exchanged(suite, same)
    for pair in pairs:
        names = tuple(suite.revisions[i].name for i in pair)
        message = f"{' and '.join(names)} stand in each other's place."
        found.append(Finding(Defect.ORDER, run, names, message))
    flagged = _off_path(suite, same, pairs)
    return found + copies + [_judged(run, suite, i, flagged[i]) for i in sorted(flagged)]


def _makes(run: str, suite: Suite) -> Iterator[Finding]:
    """Tensors that are absent, or of another shape or type than at most revisions."""
    for i, revision in enumerate(suite.revisions):
        changed = []
        for name in suite.tensors:
            here, usual = suite.print(i, name), suite.usual(name)
            if here is None:
                changed.append(f"{name} is absent")
            elif here.make != usual:
                changed.append(f"{name} is {_make(here.make)}, elsewhere {_make(usual)}")
        if changed:
            message = _some(changed)
            yield Finding(Defect.MAKE, run, (revision.name,), message)


def _nonfinite(run: str, suite: Suite) -> Iterator[Finding]:
    for i, revision in enumerate(suite.revisions):
        bad = [
            f"{name} has {p.nonfinite:g} elements"
            for name, p in suite.prints[i].items()
            if p.nonfinite
        ]
        if bad:
            message = f"Not finite: {_some(bad)}"
            yield Finding(Defect.NONFINITE, run, (revision.name,), message)


def _duplicates(run: str, suite: Suite) -> tuple[list[Finding], set[int]]:
    """Revisions with the same weights, and which of them to leave aside: all but the first."""
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for i, prints in enumerate(suite.prints):
        hashes = tuple(p.hash if (p := prints.get(n)) else math.nan for n in suite.moving)
        groups[hashes].append(i)
    found, aside = [], set()
    for group in groups.values():
        if len(group) > 1 and suite.moving:
            names = tuple(suite.revisions[i].name for i in group)
            message = f"{' = '.join(names)}: all tensors looked at are the same, byte for byte."
            found.append(Finding(Defect.DUPLICATE, run, names, message))
            aside |= set(group)
    return found, aside


def _exchanged(suite: Suite, aside: set[int]) -> list[tuple[int, int]]:
    """Revisions that stand in each other's place."""
    distance, sound = suite.overall()
    path = [i for i in np.flatnonzero(sound).tolist() if i not in aside]
    # What is mixed of two times stands nowhere.
    mixed = {i for name in suite.moving for i in _copied(suite, name, path)}
    path = [i for i in path if i not in mixed]
    alone = strangers(distance, path)
    return exchanged(distance, [i for i in path if i not in alone])


def _off_path(
    suite: Suite, aside: set[int], pairs: Sequence[tuple[int, int]]
) -> dict[int, set[str]]:
    """The tensors of each revision that do not lie between their neighbours."""
    places = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    flagged: dict[int, set[str]] = defaultdict(set)
    for name in suite.moving:
        sound = suite.sound(name)
        path = [places.get(i, i) for i in range(len(sound))]
        path = [i for i in path if sound[i] and i not in aside]
        for i in jumps(suite.distance[name], path) | _copied(suite, name, path):
            flagged[i].add(name)
    return dict(flagged)


def _copied(suite: Suite, name: str, path: Sequence[int]) -> set[int]:
    """Where a tensor has the bytes of another time: of equal ones, all but the best placed.

    Equal ones in a row are a tensor that rests, unless it does so only once.
    """
    distance, groups = suite.distance[name], defaultdict[float, list[int]](list)
    for at, i in enumerate(path):
        groups[suite.prints[i][name].hash].append(at)
    several = [places for places in groups.values() if len(places) > 1]
    found = set()
    for places in several:
        if places[-1] - places[0] >= len(places):
            fits = min(places, key=partial(_misfit, distance, path, places))
            found |= {path[at] for at in places if at != fits}
        elif len(places) == 2 and len(several) == 1 and len(path) >= _ENOUGH:
            found.add(path[places[_misplaced(distance, path, places)]])
    return found


def _misfit(
    distance: Float[Array, "times times"], path: Sequence[int], equal: Sequence[int], at: int
) -> float:
    """How badly one of several equal ones fits its place; the others do not speak for it."""
    rest = [i for k, i in enumerate(path) if k == at or k not in equal]
    return away(distance, rest, rest.index(path[at]))


def _misplaced(
    distance: Float[Array, "times times"], path: Sequence[int], places: Sequence[int]
) -> int:
    """Which of two equal neighbours, 0 or 1, is at the wrong time: the one at the longer gap."""
    first, second = places
    if first == 0 or second == len(path) - 1:
        return int(first == 0)
    into, out = distance[path[first - 1], path[first]], distance[path[second], path[second + 1]]
    return int(into <= out)


def _whole(suite: Suite, i: int, names: set[str]) -> bool:
    """Whether these are all the tensors of a revision that move."""
    return names >= {n for n in suite.moving if n in suite.prints[i]}


def _judged(run: str, suite: Suite, i: int, names: set[str]) -> Finding:
    """One finding for all flagged tensors of a revision."""
    revision = suite.revisions[i].name
    files = {suite.prints[i][n].file for n in names}
    of_files = {
        n for n in suite.moving if n in suite.prints[i] and suite.prints[i][n].file in files
    }
    if _whole(suite, i, names):
        message = f"{revision} does not lie between its neighbours: {_like(suite, i, names)}."
        return Finding(Defect.REVISION, run, (revision,), message)
    if names >= of_files:
        shown = ", ".join(sorted(files))
        message = f"{shown} of {revision} belongs elsewhere: {_like(suite, i, names)}."
        return Finding(Defect.SHARD, run, (revision,), message)
    message = f"In {revision}, off the trajectory: {_some(sorted(names))}"
    return Finding(Defect.TENSOR, run, (revision,), message)


def _like(suite: Suite, i: int, names: set[str]) -> str:
    """Whose weights these are, if they are anybody's."""
    for j, prints in enumerate(suite.prints):
        if j != i and all(n in prints and prints[n].hash == suite.prints[i][n].hash for n in names):
            return f"it equals that of {suite.revisions[j].name}"
    total = sum(np.nan_to_num(suite.distance[n], nan=np.inf) for n in names)
    others = [j for j in range(len(suite.prints)) if j != i]
    return f"the nearest is that of {suite.revisions[nearest(np.asarray(total), i, others)].name}"


def _make(make: tuple[str, tuple[int, ...]]) -> str:
    return f"{make[0]} {'x'.join(map(str, make[1]))}"


def _some(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return "; ".join(parts[:3]) + more + "."

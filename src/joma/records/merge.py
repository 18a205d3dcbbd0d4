"""Bringing the parts of another store in. Part names are unique, so twice is once."""

import os
from pathlib import Path

from joma._core.errors import StoreError
from joma.records import disk, view
from joma.records.scan import Part, Scan
from joma.records.view import View


def merge(into: Path, source: Path) -> list[str]:
    """Copy the parts of one run's directory that another lacks. Gives their file names.

    A part is lacking if neither it nor a compacted part that stands for it is there. It is
    read in full before it is copied; a damaged one is named in a warning and left out.
    """
    copied: list[str] = []

    def act(theirs: View) -> tuple[None, dict[Part, str]]:
        damaged: dict[Part, str] = {}
        for part in lacking(view.look(into), theirs):
            bad = Scan().read([part]).damaged
            damaged |= bad
            if not bad:
                disk.publish(into / os.path.basename(part.path), Path(part.path).read_bytes())
                copied.append(os.path.basename(part.path))
        return None, damaged

    with disk.locked(into):
        view.settled(source, act)
    return copied


def lacking(ours: View, theirs: View) -> list[Part]:
    """The parts in their view whose rows ours does not have; raises if some could count twice."""
    here = {p.name.id for p in ours.parts} | set(ours.owner)
    covered = frozenset().union(*ours.leaves.values())
    found = []
    for part in theirs.parts:
        leaves = theirs.leaves.get(part, frozenset({part.name.id}))
        if part.name.id in here or leaves <= covered:
            continue
        for rival, others in ours.leaves.items():
            if leaves & others and not others <= leaves:
                raise StoreError(
                    f"{part.path} and {rival.path} each stand for some of the same parts and some "
                    "others, so rows would count twice. Both stores compacted parts they share: "
                    "merge before compacting, or merge a copy that was not compacted."
                )
        found.append(part)
    return found

"""Fingerprints of a suite, taken out of a table of records and laid out by run."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float

from joma._core.typing import Array
from joma.analysis._audit_path import distances

PREFIX: Final = "fingerprint_"
UNREADABLE: Final = "unreadable"


class Listed(NamedTuple):
    """One revision, as its source lists it."""

    name: str
    run: str
    stage: str | None
    at: float
    """Step, or tokens; `nan` if the name states neither."""
    problem: str | None = None


@dataclass
class Print:
    """What is known of one tensor of one revision."""

    file: str
    hash: float = math.nan
    norm: float = math.nan
    nonfinite: float = 0.0
    dtype: str = ""
    shape: dict[int, int] = field(default_factory=dict)
    sketch: dict[int, float] = field(default_factory=dict)

    @property
    def make(self) -> tuple[str, tuple[int, ...]]:
        """Type and shape."""
        return self.dtype, tuple(size for _, size in sorted(self.shape.items()))


class Suite:
    """The revisions of one run in order, and the prints of each tensor."""

    def __init__(self, revisions: Sequence[Listed], prints: dict[str, dict[str, Print]]):
        """`prints`: revision name, then tensor name."""
        self.revisions = [r for r in revisions if r.name in prints]
        self.prints = [prints[r.name] for r in self.revisions]
        seen = Counter(name for of_one in self.prints for name in of_one)
        # A tensor that few revisions have was looked at for its file only.
        self.tensors = sorted(n for n, count in seen.items() if 2 * count >= len(self.prints))
        self.moving = [name for name in self.tensors if not self._frozen(name)]
        self.distance = {name: self._distances(name) for name in self.moving}

    def print(self, i: int, name: str) -> Print | None:
        """The print of a tensor at the i-th revision."""
        return self.prints[i].get(name)

    def usual(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Type and shape that most revisions have."""
        makes = Counter(p[name].make for p in self.prints if name in p)
        return makes.most_common(1)[0][0]

    def sound(self, name: str) -> Bool[Array, " times"]:
        """Where a tensor is there, finite and of its usual make."""
        usual = self.usual(name)
        return np.array(
            [
                (p := of_one.get(name)) is not None and p.make == usual and not p.nonfinite
                for of_one in self.prints
            ],
            bool,
        )

    def overall(self) -> tuple[Float[Array, "times times"], Bool[Array, " times"]]:
        """Distance over all moving tensors, each relative to its size, and where it is defined."""
        total = np.zeros((len(self.prints),) * 2)
        sound = np.ones(len(self.prints), bool)
        for name, distance in self.distance.items():
            norms = [p[name].norm for p in self.prints if name in p]
            size = float(np.nanmedian(norms)) or 1.0
            total += np.nan_to_num(distance / size) ** 2
            sound &= self.sound(name)
        return np.sqrt(total), sound

    def _frozen(self, name: str) -> bool:
        """Whether a tensor never changes while others do: a mask, a table of positions."""
        return len({p[name].hash for p in self.prints if name in p}) == 1 and len(self.prints) > 1

    def _distances(self, name: str) -> Float[Array, "times times"]:
        width = max((len(p[name].sketch) for p in self.prints if name in p), default=0)
        sketches = np.full((len(self.prints), max(1, width)), math.nan)
        for i, sound in enumerate(self.sound(name)):
            if sound:
                found = self.prints[i][name].sketch
                sketches[i] = [found.get(k, math.nan) for k in range(max(1, width))]
        return distances(sketches)


def suites(table: pa.Table, listing: Sequence[Listed]) -> Iterator[tuple[str, Suite]]:
    """Each run of the listing with its fingerprints."""
    prints = _prints(table)
    runs = dict.fromkeys(r.run for r in listing if r.problem is None)
    for run in runs:
        yield run, Suite([r for r in listing if r.run == run and r.problem is None], prints)


def unreadable(table: pa.Table) -> list[tuple[str, float, str]]:
    """Run, step and reason of what could not be read."""
    rows = table.filter(pc.equal(table["metric"].cast(pa.string()), UNREADABLE))
    found = {(r["run"], r["step"], r["status"]): None for r in rows.to_pylist()}
    return list(found)


def _prints(table: pa.Table) -> dict[str, dict[str, Print]]:
    """By revision and tensor."""
    wanted = table.select(["metric", "value", "head", "site"]).to_pydict()
    found: dict[str, dict[str, Print]] = defaultdict(dict)
    places: dict[str, tuple[str, str, str]] = {}
    for metric, value, head, site in zip(*wanted.values(), strict=True):
        if not metric.startswith(PREFIX) or site is None:
            continue
        if site not in places:
            tensor, file, revision = json.loads(site)
            places[site] = tensor, file, revision
        tensor, file, revision = places[site]
        one = found[revision].setdefault(tensor, Print(file))
        _note(one, metric.removeprefix(PREFIX), value, head)
    return dict(found)


def _note(one: Print, what: str, value: float, head: int | None) -> None:
    if what == "hash":
        one.hash = value
    elif what == "norm":
        one.norm = value
    elif what == "nonfinite":
        one.nonfinite = value
    elif what == "size" and head is not None:
        one.shape[head] = int(value)
    elif what == "sketch" and head is not None:
        one.sketch[head] = value
    elif what.startswith("dtype_"):
        one.dtype = what.removeprefix("dtype_")

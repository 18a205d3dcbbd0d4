"""What an experiment is: a config, a run, and claims that it may fail.

`run` writes records, `claims` read them, and nothing passes between the two but the records:
a claim is decided from a store on disk, years later, without running anything.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from joma._core.errors import JomaError
from joma._core.typing import Array
from joma.records import arrow
from joma.records.schema import Kind
from joma.records.tables import by_run, solid

Config = TypeVar("Config")

_RUN = re.compile(r"[^/]+/(?P<arm>.+)/seed(?P<seed>\d+)")


@dataclass(frozen=True, kw_only=True)
class PaperRef:
    """Where in arXiv:2310.00535 (v2) the reader can check us."""

    item: str
    equations: tuple[int, ...] = ()
    theorems: tuple[int, ...] = ()

    def __str__(self) -> str:
        more = [f"Eqn. {n}" for n in self.equations] + [f"Theorem {n}" for n in self.theorems]
        return ", ".join([self.item, *(m for m in more if m != self.item)])


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_DISTINGUISHABLE = "not distinguishable from control"
    """The effect is there, and it is there in the control as well: no evidence for the claim."""
    UNDECIDED = "not decided by these records"
    """They lack what the rule asks for; the note says what would bring it."""

    @classmethod
    def of(cls, *, effect: bool | np.bool_, control: bool | np.bool_) -> "Verdict":
        """From whether the effect was seen, and whether the control shows it too."""
        if not effect:
            return cls.FAILS
        return cls.NOT_DISTINGUISHABLE if control else cls.HOLDS


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict and the numbers it rests on."""

    verdict: Verdict
    numbers: Mapping[str, float]
    """Median over the seeds."""
    spread: Mapping[str, tuple[float, float]]
    """Lowest and highest over the seeds."""
    seeds: int
    note: str = ""

    @classmethod
    def over_seeds(
        cls, verdict: Verdict, numbers: Mapping[str, Sequence[float] | Array], note: str = ""
    ) -> "Finding":
        """From one value per seed of each number; `seeds` is the longest of them."""
        values = {name: np.asarray(value, dtype=float) for name, value in numbers.items()}
        return cls(
            verdict=verdict,
            numbers={name: float(np.median(v)) for name, v in values.items()},
            spread={name: (float(v.min()), float(v.max())) for name, v in values.items()},
            seeds=max(len(v) for v in values.values()),
            note=note,
        )


class Curve(NamedTuple):
    """One metric of one run, in the order of its steps."""

    steps: Float[Array, " times"]
    values: Float[Array, " times"]

    def at(self, step: float | int) -> float:
        """The value at the recorded step nearest to `step`."""
        return float(self.values[np.abs(self.steps - step).argmin()])


@dataclass(frozen=True)
class Evidence:
    """The records of one experiment, as curves. Runs are named `NAME/ARM/seedN`."""

    table: pa.Table

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Every seed that has records."""
        return tuple(sorted({seed for _, _, _, seed in self._curves}))

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Every arm that has records."""
        return tuple(sorted({arm for _, arm, _, _ in self._curves}))

    def part(self, **where: Any) -> "Evidence":
        """Only the rows of one place in a model: `part(layer=0)`, `part(site="mlp.up")`."""
        table = self.table
        for column, value in where.items():
            table = table.filter(pc.equal(table[column], value))
        return Evidence(table)

    def curve(self, metric: str, *, arm: str, seed: int, kind: Kind | None = None) -> Curve:
        """One metric of one arm and seed. Raises if there are no such records."""
        kinds = [kind] if kind else list(Kind)
        found = [c for k in kinds if (c := self._curves.get((metric, arm, str(k), seed)))]
        if len(found) == 1:
            return found[0]
        there = ", ".join(sorted({f"{m} of {a} ({k})" for m, a, k, _ in self._curves})) or "none"
        raise JomaError(
            f"Expected one curve of {metric!r} of arm {arm!r}, seed {seed}; found {len(found)}. "
            f"There are: {there}."
        )

    def curves(self, metric: str, *, arm: str, kind: Kind | None = None) -> list[Curve]:
        """One metric of one arm, for every seed that has it, in order of seed."""
        having = {s for m, a, k, s in self._curves if (m, a) == (metric, arm) and kind in (None, k)}
        if not having:
            self.curve(metric, arm=arm, seed=0, kind=kind)  # raises, and says what there is
        return [self.curve(metric, arm=arm, seed=s, kind=kind) for s in sorted(having)]

    @cached_property
    def _curves(self) -> dict[tuple[str, str, str, int], Curve]:
        if not self.table.num_rows:
            return {}
        found = {}
        for run, rows in by_run(solid(self.table)):
            arm, seed = _place(run)
            steps, values = (rows[name].to_numpy() for name in ("step", "value"))
            metric, kind = (np.array(rows[name].to_pylist()) for name in ("metric", "kind"))
            for m, k in sorted(set(zip(metric.tolist(), kind.tolist(), strict=True))):
                here = (metric == m) & (kind == k)
                found[m, arm, k, seed] = _curve(steps[here], values[here])
        return found


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence of the paper as a question about records."""

    name: str
    says: str
    """The claim, as the paper means it, with its place."""
    control: str
    """What was measured where the effect should be absent."""
    rule: str
    """When it holds, with the numbers `decide` uses."""
    decide: Callable[[Evidence], Finding]


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[Config]):
    """One figure, table or theorem. Lives in one file, named after it."""

    title: str
    paper: PaperRef
    version: int
    """Raised whenever the records would change, so that old and new are never mixed."""
    presets: Mapping[str, Config]
    """At least `ci`, which takes seconds or minutes, and `paper`, at the size of the paper."""
    run: Callable[..., Iterator[pa.Table]]
    """Config and seed to record tables, as `records` makes them; the same ones every time.
    Where `trains`, also a folder of this seed's own, to keep checkpoints in until it is done."""
    claims: tuple[Claim, ...]
    seeds: int | Mapping[str, int]
    """How many seeds, counted from 0, unless the caller says otherwise; may differ by preset."""
    cost: str
    """Time and memory of the presets, with all seeds."""
    deviations: tuple[str, ...] = field(default=())
    """Where we knowingly differ from the paper or its code, and why."""
    figure: Callable[[Evidence], Any] | None = None
    trains: bool = False
    """Whether `run` trains for long enough to need checkpoints, and takes a folder for them."""

    def count(self, preset: str) -> int:
        """How many seeds a preset has."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds[preset]


def records(arm: str, seed: int, *, kind: Kind = Kind.MEASURED, **columns: Any) -> pa.Table:
    """Record rows of one arm and seed; `columns` are those of `joma.records.arrow.from_columns`.

    The runner puts the name of the experiment in front.

    Example:
        >>> records("linear", 3, metric="loss", step=[0, 1], value=[2.0, 1.5])["run"][0].as_py()
        'linear/seed3'
    """
    return arrow.from_columns(run=f"{arm}/seed{seed}", kind=kind.value, **columns)


def _place(run: str) -> tuple[str, int]:
    match = _RUN.fullmatch(run)
    if match is None:
        raise JomaError(f"Runs of an experiment are named NAME/ARM/seedN; got {run!r}.")
    return match["arm"], int(match["seed"])


def _curve(steps: Array, values: Array) -> Curve:
    order = np.argsort(steps, kind="stable")
    return Curve(steps[order], values[order])

"""What a measurement looks like, everywhere: the row that probes and theory write.

This is the waist of the system. A `Reading` says *what* was seen and *where* in the
model; a `Record` adds *when*, in *which* run. `COLUMNS` is the same row as a flat table,
column by column: it is what the Parquet store holds and what the reference page prints.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from joma._core.errors import JomaError

SCHEMA_VERSION = 1
"""Raised when a column is added, removed or changes its meaning. Written into every part."""

OK = "ok"


class Bound(StrEnum):
    """What `lower` and `upper` promise."""

    CERTIFIED = "certified"
    """The true value lies between them, proved (rounding included)."""
    CI95 = "ci95"
    """A 95 % confidence interval."""
    NONE = "none"
    """No bound was computed; `lower` and `upper` are absent."""


class Kind(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    CONTROL = "control"
    """Measured on something that should not show the effect: untrained, shuffled, linear."""


class Context(StrEnum):
    """What the model was looking at."""

    PROBE = "probe"
    """One fixed batch, the same at every step."""
    TRAIN = "train"
    EVAL = "eval"
    WEIGHTS = "weights"
    """Nothing: the number is a function of the parameters alone."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number a probe took. Knows where in the model, not when in the run."""

    metric: str
    """Name of the metric: `attention_entropy`, `stable_rank`, `loss`."""
    value: float
    """The number. `nan` means undefined, and then `status` says why."""
    metric_version: int = 1
    """Raised when the same tensors would give another number."""
    lower: float | None = None
    """Lower end of the bound; absent if `bound` is none."""
    upper: float | None = None
    """Upper end of the bound; absent if `bound` is none."""
    bound: Bound = Bound.NONE
    """What `lower` and `upper` promise."""
    status: str = OK
    """`ok`, or the reason why `value` is `nan`."""
    layer: int | None = None
    """Block index from the input upwards, from 0; absent for a whole-model reading."""
    head: int | None = None
    """Attention head within the block, from 0."""
    site: str | None = None
    """Which of several matrices or attentions in a block: `mlp.up`, `mlp.gate`, `decoder.cross`."""
    expert: int | None = None
    """Expert of a mixture-of-experts block, from 0."""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise JomaError(f"Reading of {self.metric!r}: {problem}")


def _problem(reading: Reading) -> str | None:
    if math.isnan(reading.value) != (reading.status != OK):
        return (
            f"value {reading.value} does not go with status {reading.status!r}; an undefined value "
            "is nan with its reason, any other value has status 'ok'."
        )
    if reading.bound == Bound.NONE:
        if reading.lower is not None or reading.upper is not None:
            return "lower and upper need a bound kind, 'certified' or 'ci95'; got 'none'."
    elif reading.status == OK and not (
        reading.lower is not None
        and reading.upper is not None
        and reading.lower <= reading.value <= reading.upper
    ):
        return (
            f"a {reading.bound} bound needs lower <= value <= upper; "
            f"got {reading.lower} <= {reading.value} <= {reading.upper}."
        )
    return None


@dataclass(frozen=True, slots=True)
class Record:
    """A reading placed in a run: the row that is written to disk."""

    run: str
    """One training trajectory, never one revision of it: `EleutherAI/pythia-160m`, `fig6/seed0`."""
    step: float
    """Optimiser step, or ODE time of a prediction. Whole numbers are exact up to 2**53."""
    reading: Reading
    kind: Kind = Kind.MEASURED
    """Measured, predicted, or measured on a control."""
    context: Context | None = None
    """What the model was looking at; absent for a prediction."""
    stage: str | None = None
    """Part of a run with its own step count: `pretrain`, `stage2`, `sft`. Absent if only one."""
    tokens: int | None = None
    """Training tokens seen at `step`, if known."""
    sequence_length: int | None = None
    """Length of the sequences behind the number; entropies depend on it."""


class Column(NamedTuple):
    """One column of the table, as stored."""

    name: str
    dtype: Literal["text", "float64", "int64", "int32"]
    nullable: bool
    owner: type[Record] | type[Reading]


COLUMNS: tuple[Column, ...] = (
    Column("run", "text", False, Record),
    Column("stage", "text", True, Record),
    Column("step", "float64", False, Record),
    Column("tokens", "int64", True, Record),
    Column("kind", "text", False, Record),
    Column("context", "text", True, Record),
    Column("sequence_length", "int32", True, Record),
    Column("metric", "text", False, Reading),
    Column("metric_version", "int32", False, Reading),
    Column("value", "float64", False, Reading),
    Column("lower", "float64", True, Reading),
    Column("upper", "float64", True, Reading),
    Column("bound", "text", False, Reading),
    Column("status", "text", False, Reading),
    Column("layer", "int32", True, Reading),
    Column("head", "int32", True, Reading),
    Column("site", "text", True, Reading),
    Column("expert", "int32", True, Reading),
)
"""The row as a flat table, in the order of the file. `text` is dictionary-encoded UTF-8."""

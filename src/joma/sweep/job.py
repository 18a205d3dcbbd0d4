"""What is to be done: a job, its tasks, and the keys under which the store knows them.

A task is a fixed chunk of consecutive revisions and of the places of one need. It starts cold and
is warm inside, and chunks depend on the suite alone, so a value depends neither on the number
of workers nor on what was interrupted.
"""

import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from joma.probes.base import AbstractStreamProbe, AbstractWeightProbe
from joma.sources.base import AbstractSource, Revision

Probe: TypeAlias = AbstractStreamProbe | AbstractWeightProbe

_KEY_VERSION = 1


@dataclass(frozen=True)
class Text:
    """A text to look at, cut into equally long sequences."""

    content: str
    length: int = 128
    """Tokens of a sequence."""
    sequences: int = 8
    """At most so many, from the beginning of the text."""


@dataclass(frozen=True)
class Job:
    """What all tasks share. It goes to each worker once."""

    source: AbstractSource
    probes: Mapping[str, Probe]
    """By the name they have in the keys of tasks."""
    text: Text | None = None
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The `config.json` of each run, as its first revision has it."""
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For fingerprints: names of the tensors to look at, by run."""


@dataclass(frozen=True)
class Task:
    """Some revisions of one run, at some places of one need, for some probes."""

    run: str
    need: str
    probes: tuple[str, ...]
    revisions: tuple[Revision, ...]
    spots: tuple[str, ...]

    def keys(self, job: Job) -> list[str]:
        """One key per probe, so that a probe that joins later repeats no other."""
        names = [revision.name for revision in self.revisions]
        return [
            json.dumps([*identity(self.run, name, job, self.need, self.spots), names])
            for name in self.probes
        ]

    def __str__(self) -> str:
        first, last = self.revisions[0].name, self.revisions[-1].name
        return f"{self.run} {first}..{last} {self.need} ({', '.join(self.probes)})"


def identity(
    run: str, probe: str, job: Job, need: str, spots: Iterable[str]
) -> tuple[int, str, str, str, str]:
    """What a value depends on, but for the revision: run, probe with its settings, places, text."""
    what = [_settings(job.probes[probe]), list(spots)]
    if job.text is not None and not isinstance(job.probes[probe], AbstractWeightProbe):
        what.append(dataclasses.astuple(job.text))
    return _KEY_VERSION, run, probe, need, _digest(what)


def covered(keys: Iterable[str]) -> dict[tuple[Any, ...], set[str]]:
    """Names of the revisions that are done, by identity. Keys of others are passed over."""
    done: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for key in keys:
        try:
            found = json.loads(key)
        except ValueError:
            continue
        if isinstance(found, list) and len(found) == 6 and found[0] == _KEY_VERSION:
            done[tuple(found[:-1])].update(found[-1])
    return done


def seed_of(run: str, revision: str, spot: str) -> int:
    """The seed of one measurement: the same wherever and whenever it is taken."""
    return int(_digest([run, revision, spot]), 16) % 2**63


def _settings(probe: Probe) -> Any:
    """Class and fields: two probes of equal settings give equal values."""
    name = f"{type(probe).__module__}.{type(probe).__qualname__}"
    fields: dict[str, Any] = dataclasses.asdict(probe) if dataclasses.is_dataclass(probe) else {}
    return [name, {k: repr(v) for k, v in sorted(fields.items())}]


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]

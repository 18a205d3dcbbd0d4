"""What a sweep would read, and the tasks it consists of. Reads one header per run."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from joma._core.errors import JomaError
from joma.metrics import registry
from joma.probes.base import WEIGHT_NEEDS, Need
from joma.sources.base import AbstractSource, Index, Revision, coalesced
from joma.sweep import fingerprint
from joma.sweep.job import Job, Probe, Task, Text, covered, identity
from joma.sweep.work import layout

REVISIONS: Final = 8
"""Consecutive revisions of a task: the first is measured cold, the others start warm."""
CHUNK: Final = 2**30
"""Bytes of tensors of one revision that a task looks at, or one place if that is more."""
PIECE: Final = 32 * 2**20
"""A longer range is fetched in pieces of this size over HTTP."""


@dataclass(frozen=True)
class Amount:
    """What is read of one revision for one need."""

    tensors: int
    bytes: int
    requests: int
    """Over HTTP, headers included. Of local files, reads."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of what each probe is shown, as stored."""


@dataclass(frozen=True)
class Plan:
    """The tasks of a sweep that are not done yet, and what they read."""

    job: Job
    tasks: tuple[Task, ...]
    amounts: Mapping[tuple[str, str, tuple[str, ...]], Amount]
    """By run, need and spots: per revision. Assumes that revisions are alike."""
    revisions: int
    """Of the whole suite, done or not, without those left out."""
    left_out: tuple[Revision, ...]
    """Revisions that state no step."""
    indices: Mapping[str, Index]
    """By run: of the first revision that can be read."""
    done: int = 0
    """Measurements (a revision, for a need and probe, at a chunk of places) found in the store."""

    def amount(self, task: Task) -> Amount:
        """What one task reads, all its revisions together."""
        one, n = self.amounts[task.run, task.need, task.spots], len(task.revisions)
        return Amount(one.tensors * n, one.bytes * n, one.requests * n, one.shapes)

    @property
    def total(self) -> Amount:
        """What all tasks read."""
        found = [self.amount(task) for task in self.tasks]
        return Amount(
            sum(a.tensors for a in found),
            sum(a.bytes for a in found),
            sum(a.requests for a in found),
        )


def probes_of(wanted: Iterable[str] | Mapping[str, Probe]) -> dict[str, Probe]:
    """Probes by name. Names are those of `joma ls metrics`."""
    if isinstance(wanted, Mapping):
        return dict(wanted)
    found = {name: registry.load(name) for name in wanted}
    for name, probe in found.items():
        if probe is None:
            raise JomaError(
                f"{name!r} has no probe: it needs more than a checkpoint. "
                f"See joma.metrics.{name} for the function."
            )
    return found


def plan(
    source: AbstractSource,
    probes: Iterable[str] | Mapping[str, Probe],
    *,
    text: Text | None = None,
    completed: Iterable[str] = (),
    sample: int | None = None,
) -> Plan:
    """The tasks of a sweep.

    Args:
        source: Where the checkpoints are.
        probes: Names of metrics, or probes by name.
        text: What models read, for probes that watch them.
        completed: Keys of tasks that are done.
        sample: For fingerprints: how many tensors of each file to look at.
    """
    found = probes_of(probes)
    needs = _needs(found, text)
    kept, left_out = _placed(source.revisions())
    runs = {run: tuple(of_run) for run, of_run in groupby(kept, key=lambda r: r.run)}
    job = Job(source, found, text)
    tasks: list[Task] = []
    amounts: dict[tuple[str, str, tuple[str, ...]], Amount] = {}
    indices: dict[str, Index] = {}
    done = covered(completed)
    skipped = 0
    for run, revisions in runs.items():
        index, config = _first(source, revisions)
        indices[run] = index
        job = replace(job, configs={**job.configs, run: config})
        if fingerprint.NEED in needs:
            names = fingerprint.chosen(index, config, sample)
            job = replace(job, chosen={**job.chosen, run: names})
        for need, names_of_probes in needs.items():
            for spots, amount in _chunks(job, run, need, index):
                amounts[run, need, spots] = amount
                tasks += _tasks(run, need, names_of_probes, revisions, spots, job, done)
                skipped += _done(run, need, names_of_probes, revisions, spots, job, done)
    return Plan(job, tuple(tasks), amounts, len(kept), left_out, indices, skipped)


def _needs(probes: Mapping[str, Probe], text: Text | None) -> dict[str, list[str]]:
    """Names of the probes of each need."""
    needs: dict[str, list[str]] = {}
    for name, probe in probes.items():
        special = isinstance(probe, fingerprint.FingerprintProbe)
        if probe.need not in WEIGHT_NEEDS and text is None:
            raise JomaError(
                f"{name!r} watches a model read, so it needs a text. "
                "Give one: joma sweep … --text FILE, or Sweep(text=Text(…))."
            )
        if probe.need is Need.MLP_IN_GRADIENT:
            raise JomaError(f"{name!r} needs gradients, which checkpoints do not hold.")
        needs.setdefault(fingerprint.NEED if special else probe.need.value, []).append(name)
    return needs


def _placed(revisions: Sequence[Revision]) -> tuple[list[Revision], tuple[Revision, ...]]:
    """Revisions that have a step, and those that do not. A lone one needs none."""
    if len(revisions) == 1:
        return list(revisions), ()
    kept = [r for r in revisions if not math.isnan(r.at)]
    return kept, tuple(r for r in revisions if math.isnan(r.at))


def _first(
    source: AbstractSource, revisions: Sequence[Revision]
) -> tuple[Index, Mapping[str, Any]]:
    """Index and config of the first revision that can be read."""
    problem: JomaError | None = None
    for revision in revisions:
        try:
            return source.index(revision.name), source.config(revision.name)
        except JomaError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _chunks(
    job: Job, run: str, need: str, index: Index
) -> Iterator[tuple[tuple[str, ...], Amount]]:
    """Spots of a need that make up a task, with what they read of one revision."""
    if need != fingerprint.NEED and Need(need) not in WEIGHT_NEEDS:
        yield (need,), Amount(len(index.tensors), index.nbytes, _requests(index, index.tensors))
        return
    chunk: dict[str, tuple[str, ...]] = {}
    shapes: list[tuple[int, ...]] = []
    size = 0
    for spot in layout(job, run, need, index):
        more = sum(index.tensors[name].nbytes for name in spot.names)
        if chunk and size + more > CHUNK:
            yield tuple(chunk), _amount(index, chunk, shapes)
            chunk, shapes, size = {}, [], 0
        chunk[spot.key] = (*chunk.get(spot.key, ()), *spot.names)
        shapes.append(index.tensors[spot.names[0]].shape)
        size += more
    if need == fingerprint.NEED:
        chunk.setdefault(fingerprint.UNCOVERED, ())  # other revisions may have other files
    if chunk:
        yield tuple(chunk), _amount(index, chunk, shapes)


def _amount(
    index: Index, chunk: Mapping[str, tuple[str, ...]], shapes: Sequence[tuple[int, ...]]
) -> Amount:
    names = tuple(dict.fromkeys(n for several in chunk.values() for n in several))
    size = sum(index.tensors[name].nbytes for name in names)
    return Amount(len(names), size, _requests(index, names), tuple(shapes))


def _requests(index: Index, names: Iterable[str]) -> int:
    """Ranges in pieces, and for the headers a listing, a table of shards and two per file."""
    ranges = coalesced(index.pick(names))
    pieces = sum(math.ceil((r.stop - r.start) / PIECE) for r in ranges)
    return pieces + 1 + (len(index.files) > 1) + 2 * len(index.files)


def _tasks(
    run: str,
    need: str,
    probes: Sequence[str],
    revisions: Sequence[Revision],
    spots: tuple[str, ...],
    job: Job,
    done: Mapping[tuple[Any, ...], set[str]],
) -> Iterator[Task]:
    """Tasks of one need at some spots; what is done already is cut out of its chunk."""
    known = {name: done.get(identity(run, name, job, need, spots), set()) for name in probes}
    for at in range(0, len(revisions), REVISIONS):
        chunk = revisions[at : at + REVISIONS]
        open_: dict[tuple[Revision, ...], list[str]] = {}
        for name in probes:
            rest = tuple(r for r in chunk if r.name not in known[name])
            if rest:
                open_.setdefault(rest, []).append(name)
        for rest, names in open_.items():
            yield Task(run, need, tuple(names), rest, spots)


def _done(
    run: str,
    need: str,
    probes: Sequence[str],
    revisions: Sequence[Revision],
    spots: tuple[str, ...],
    job: Job,
    done: Mapping[tuple[Any, ...], set[str]],
) -> int:
    there = {revision.name for revision in revisions}
    return sum(
        len(there & done.get(identity(run, name, job, need, spots), set())) for name in probes
    )

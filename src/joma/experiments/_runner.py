"""Runs an experiment into a records store, and decides its claims from there.

The store of an experiment is `OUT/NAME/PRESET/vVERSION`. Every table that the experiment yields
is a task of the store, and so is every seed: an interrupted run is simply run again, and only
what is missing is written.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from joma._core.errors import JomaError, UnknownNameError
from joma._core.registry import closest
from joma.experiments import OUT, _kept
from joma.experiments.base import Claim, Evidence, Experiment, Finding
from joma.records.arrow import SCHEMA
from joma.records.provenance import collect, plain
from joma.records.store import Store
from joma.records.tables import by_run, solid

Decided: TypeAlias = tuple[Claim, Finding]


def place(out: Path, name: str, preset: str, experiment: Experiment[Any]) -> Path:
    """Where the records of one preset and version are, or will be."""
    if preset not in experiment.presets:
        raise UnknownNameError(
            f"{name} has no preset {preset!r}.{closest(preset, list(experiment.presets))}"
        )
    return out / name / preset / f"v{experiment.version}"


def run(
    name: str,
    experiment: Experiment[Any],
    *,
    preset: str = "ci",
    seeds: int | None = None,
    out: Path = OUT,
    finished: Callable[[int], object] = lambda _: None,
) -> Store:
    """Run the seeds that are not there yet. A claim that fails is no error.

    Args:
        name: What the experiment is called; runs are `NAME/ARM/seedN`.
        experiment: What to run.
        preset: Which of its configs.
        seeds: How many, counted from 0; the experiment's own number if absent.
        out: Folder of all experiments.
        finished: Called with each seed whose records are complete.
    """
    path = place(out, name, preset, experiment)
    count = experiment.count(preset) if seeds is None else seeds
    if count < 1:
        raise JomaError(f"An experiment needs at least one seed; got {count}.")
    _same_config(Store(path), experiment.presets[preset])
    for seed in range(count):
        if _seed_key(name, seed) not in Store(path).completed():
            _run_seed(path, name, experiment, experiment.presets[preset], seed)
        finished(seed)
    return Store(path)


def check(
    name: str, experiment: Experiment[Any], *, preset: str = "ci", out: Path = OUT
) -> list[Decided] | None:
    """Every claim decided from the records of complete seeds; `None` if there are none."""
    seen = evidence(name, experiment, preset=preset, out=out)
    if seen is None:
        return None
    return [(claim, claim.decide(seen)) for claim in experiment.claims]


def evidence(
    name: str, experiment: Experiment[Any], *, preset: str = "ci", out: Path = OUT
) -> Evidence | None:
    """The records of complete seeds, from a store or a kept file; `None` if there are none."""
    path = place(out, name, preset, experiment)
    if _kept.file_of(path).is_file():
        return Evidence(_kept.load(_kept.file_of(path)))
    store = Store(path)
    done = store.completed()
    runs = [r for r in store.runs() if _seed_key(name, _seed_of(r)) in done]
    return Evidence(store.read(run=runs)) if runs else None


def provenance(
    name: str, experiment: Experiment[Any], *, preset: str = "ci", out: Path = OUT
) -> list[dict[str, Any]]:
    """How the records were made, seed by seed."""
    path = place(out, name, preset, experiment)
    if _kept.file_of(path).is_file():
        return _kept.provenance(_kept.file_of(path))
    return sorted(Store(path).provenance().values(), key=lambda noted: int(noted["seed"]))


def presets_run(name: str, experiment: Experiment[Any], out: Path = OUT) -> list[str]:
    """Presets with a complete seed, the largest (last in `presets`) first."""
    found = []
    for preset in reversed(list(experiment.presets)):
        path = place(out, name, preset, experiment)
        done = Store(path).completed()
        if _kept.file_of(path).is_file() or any(k.startswith(f"{name}/seed") for k in done):
            found.append(preset)
    return found


def _run_seed(path: Path, name: str, experiment: Experiment[Any], config: Any, seed: int) -> None:
    store = Store(path, provenance=collect(config=config, seed=seed))
    done = store.completed()
    last = f"{name}/all/seed{seed}"  # of an experiment that yields nothing
    folder = scratch(path, seed)
    own = (folder,) if experiment.trains else ()
    with store.writer() as writer:
        for run, key, rows in _tasks(name, seed, experiment.run(config, seed, *own)):
            last = run
            if key not in done:
                writer.append(rows, {run: [key]})
    store.append(SCHEMA.empty_table(), {last: [_seed_key(name, seed)]})
    shutil.rmtree(folder, ignore_errors=True)


def scratch(store: Path, seed: int) -> Path:
    """Where a seed keeps checkpoints while it trains: beside the store, gone when it is done."""
    return store.with_name(f"{store.name}-training") / f"seed{seed}"


def _tasks(name: str, seed: int, tables: Iterator[pa.Table]) -> Iterator[tuple[str, str, pa.Table]]:
    """Rows run by run, under full names, with a key that is the same on every attempt."""
    for i, table in enumerate(tables):
        for run, rows in by_run(solid(_named(name, table))):
            if _seed_of(run) != seed:
                raise JomaError(
                    f"{name} was asked for seed {seed} and gave a run {run!r}; "
                    "joma.experiments.base.records(arm, seed, ...) names runs."
                )
            yield run, f"{run}#{i}", rows


def _named(name: str, table: pa.Table) -> pa.Table:
    runs = table["run"].cast(pa.string())
    full = pc.binary_join_element_wise(pa.scalar(name), runs, "/").cast(SCHEMA.field("run").type)
    return table.set_column(table.schema.get_field_index("run"), SCHEMA.field("run"), full)


def _seed_key(name: str, seed: int) -> str:
    return f"{name}/seed{seed}"


def _seed_of(run: str) -> int:
    word = run.rsplit("/", 1)[-1].removeprefix("seed")
    return int(word) if word.isdecimal() else -1


def _same_config(store: Store, config: Any) -> None:
    """Refuse to add to records that were made with other settings."""
    wanted = plain(config)
    noted: Sequence[Any] = [p["config"] for p in store.provenance().values()]
    other = next((c for c in noted if c != wanted), None)
    if other is not None:
        raise JomaError(
            f"The records in {store.path} were made with {other}, and the config is now {wanted}. "
            "Raise the version of the experiment, or choose another folder."
        )

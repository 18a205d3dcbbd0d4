"""The training loop of the lab: plain torch, seeded, and the same bits after any number of kills.

Nothing random has a state to save. Before each step torch's generators are seeded from the run's
seed and the step, so batches and dropout are functions of the two, and measuring in between cannot
move them. What is left to save are weights, optimiser and step.

Records and checkpoint stay in step by their order: the rows up to a step are committed first, each
measured step under a task key of its own, then the checkpoint of that step appears. A run killed
between the two trains the stretch again and finds in the store that its rows are there.
"""

import hashlib
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from torch import nn
from torch.optim import Optimizer

from joma._core.errors import JomaError, StoreError
from joma.experiments import _checkpoint
from joma.experiments._checkpoint import Checkpoint, ResumeWarning as ResumeWarning
from joma.experiments._meter import Loss, Measurement as Measurement, Meter, reseed
from joma.records import arrow, disk
from joma.records.schema import Record
from joma.records.store import Store

PATIENCE = 2.0
"""Seconds before a progress bar is shown."""


def train(
    model: nn.Module,
    loss: Loss,
    batch: Callable[[int], Any],
    optimiser: Optimizer,
    *,
    steps: int,
    seed: int,
    run: str,
    store: Store,
    folder: Path,
    measure: Measurement,
    save_every: int = 1000,
    clip: float | None = None,
    before: Callable[[int], None] | None = None,
) -> None:
    """Train `model` in place, or finish training it, and leave its records in `store`.

    To resume, call it again with the same arguments, model and optimiser made anew. The result is
    that of an uninterrupted run bit for bit, given the same number of torch threads. `steps`,
    `save_every` and the steps to measure may change in between; if steps are to be measured that
    the run has passed, it goes back. Modules train in the mode they are in.

    Args:
        model: On the CPU or a CUDA device; bits are promised on the CPU.
        loss: Minimised. Randomness comes from torch's global generators, which are put back.
        batch: Batch of a step; called once per step, and again after a kill. It may draw from the
            global generators, and must depend on nothing else that changes.
        optimiser: Any whose state is tensors and numbers; made for `model`.
        steps: Number of updates.
        seed: Of dropout and whatever else draws while training, not of the initial weights.
        run: Name of the run in the records.
        store: Rows become visible at each checkpoint.
        folder: Checkpoints of this run and no other.
        measure: What to measure and when.
        save_every: Steps between checkpoints; what a kill costs at most.
        clip: Longest gradient, of all parameters together.
        before: Called with the step before each update: learning rates, a fresh optimiser state.
    """
    settings = _settings(model, optimiser, run, seed, clip, measure)
    meter = Meter(model, loss, measure, run, seed)
    with _alone(run, folder), _own_randomness(model), _progress(run, steps) as show:
        done = _done(store, run, settings)
        lacking = {s for s in measure.at if 0 <= s <= steps} - done
        first = step = _resume(model, optimiser, settings, folder, lacking, steps)
        rows: list[Record] = []
        while True:
            if step in lacking:
                rows += meter.records(step)
            if step == steps or (step % save_every == 0 and step > first):
                if rows:
                    keys = {_key(settings, int(row.step)) for row in rows}
                    store.append(arrow.table(rows), tasks=sorted(keys))
                    rows = []
                if step > first:
                    _checkpoint.save(folder, _state(model, optimiser, settings, step))
            if step == steps:
                return
            _update(model, loss, batch, optimiser, step, seed, clip, before)
            step += 1
            show(step)


def _update(
    model: nn.Module,
    loss: Loss,
    batch: Callable[[int], Any],
    optimiser: Optimizer,
    step: int,
    seed: int,
    clip: float | None,
    before: Callable[[int], None] | None,
) -> None:
    reseed(seed, step)
    if before is not None:
        before(step)
    model.zero_grad()
    loss(model, batch(step)).backward()  # type: ignore[no-untyped-call]
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()


def _resume(
    model: nn.Module,
    optimiser: Optimizer,
    settings: dict[str, str],
    folder: Path,
    lacking: set[int],
    steps: int,
) -> int:
    """Load the furthest checkpoint that is whole and has its records; gives its step, or 0."""
    for path, found in _checkpoint.saved(folder):
        if found is None:
            problem = "is damaged"
        else:
            _refuse_another(found, settings, steps, path)
            lost = [s for s in lacking if s <= found.step]
            if not lost:
                _checkpoint.warn_of_threads(found)
                model.load_state_dict(found.model)
                optimiser.load_state_dict(found.optimiser)
                return found.step
            problem = f"has no records of step {min(lost)} in the store"
        path.unlink()
        message = f"{path} {problem}: it was deleted, and the run goes back."
        warnings.warn(message, ResumeWarning, stacklevel=3)
    return 0


def _refuse_another(found: Checkpoint, settings: dict[str, str], steps: int, path: Path) -> None:
    for name, now in settings.items():
        if found.settings[name] != now:
            raise JomaError(
                f"{path} is of another run: its {name} was {found.settings[name]}, now it is {now}."
                " Use the same, or another folder."
            )
    if found.step > steps:
        raise JomaError(
            f"{path} is at step {found.step}, past the {steps} asked for. "
            f"Ask for steps >= {found.step}, or use another folder."
        )


def _settings(
    model: nn.Module,
    optimiser: Optimizer,
    run: str,
    seed: int,
    clip: float | None,
    measure: Measurement,
) -> dict[str, str]:
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimiser.param_groups]
    return {
        "run": repr(run),
        "seed": str(seed),
        "clip": str(clip),
        "optimiser": f"{type(optimiser).__name__} {groups}",
        "probes": ", ".join(type(probe).__name__ for probe in measure.probes),
        "digest of initial weights": _checkpoint.digest(model.state_dict()),
    }


def _state(
    model: nn.Module, optimiser: Optimizer, settings: dict[str, str], step: int
) -> Checkpoint:
    return Checkpoint(
        step=step,
        settings=settings,
        threads=torch.get_num_threads(),
        model=dict(model.state_dict()),
        optimiser=optimiser.state_dict(),
    )


def _key(settings: dict[str, str], step: int) -> str:
    """The task of measuring one step, in the ledger that the store is."""
    words = hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
    return f"training {words} step {step}"


def _done(store: Store, run: str, settings: dict[str, str]) -> set[int]:
    """Steps whose rows are in the store. Rows of the same name and other settings are refused."""
    found = {key for key in store.completed(run) if re.fullmatch(r"training \w+ step \d+", key)}
    done = {int(key.split()[-1]) for key in found}
    if found != {_key(settings, step) for step in done}:
        raise JomaError(
            f"{store} has records of another training of {run!r}: initial weights, optimiser, "
            "seed, clip or probes differ. Name this run differently, or use another store."
        )
    return done


@contextmanager
def _own_randomness(model: nn.Module) -> Iterator[None]:
    """Put the global generators back at the end."""
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        yield


@contextmanager
def _alone(run: str, folder: Path) -> Iterator[None]:
    """Keep other processes from training the same run; a kill lets go."""
    with ExitStack() as stack:
        try:
            stack.enter_context(disk.locked(folder))
        except StoreError as error:
            raise JomaError(
                f"Run {run!r} cannot have {folder} to itself; is it in training in another "
                "process? Wait for that one, or end it: this one then goes on where it was."
            ) from error
        _checkpoint.sweep(folder)
        yield


@contextmanager
def _progress(run: str, steps: int) -> Iterator[Callable[[int], None]]:
    """A function that shows a step on a bar: on a terminal, in runs that take their time."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: None
        return
    bar = Progress(console=console, transient=True)
    task = bar.add_task(escape(run), total=steps)
    start = time.monotonic()

    def show(step: int) -> None:
        bar.update(task, completed=step)
        if not bar.live.is_started and time.monotonic() - start > PATIENCE:
            bar.start()

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()

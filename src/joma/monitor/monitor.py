"""`Monitor`: one object beside a training loop, told of each optimiser step.

It looks at the model between steps and hands on what it saw. The training that it watches is, bit
for bit, the training that would have been without it, and nothing that goes wrong here ends it.
"""

import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from torch import nn

from joma._core.errors import JomaError
from joma.architectures.base import Architecture
from joma.metrics.entropy import PROBE as ENTROPY
from joma.metrics.logits import PROBE as LOGITS
from joma.metrics.rank import PROBE as RANK
from joma.monitor import scene, schedule, team
from joma.monitor.clock import Clock, Cost
from joma.monitor.desk import OVERHEAD, Desk, Scalar
from joma.monitor.harmless import generators_kept
from joma.monitor.leaving import Leaving
from joma.monitor.look import Look
from joma.monitor.sinks.base import AbstractSink, Alert
from joma.monitor.team import Team
from joma.monitor.watch import Probe
from joma.records.schema import Context, Reading

DEFAULT: Final[tuple[Probe, ...]] = (ENTROPY, LOGITS, RANK)
"""Attention entropy, largest attention logit, stable rank."""
REVIEW: Final = 4
"""Steps after the first observation, whose cost says little, to the second, if a budget rules."""
NEVER: Final = -1
NO_FORWARD: Final = (
    "Nothing can be observed: no forward of the model was seen before the first step. Pass the "
    "model that the loop calls (compiled, wrapped), or batch= if it is called in another way."
)

_LOG = logging.getLogger("joma.monitor")


class Monitor:
    """Watches a model while it trains. Call `step` once per optimiser step.

    By default the model is shown one fixed batch between optimiser steps, in evaluation mode, so
    that readings of different steps can be compared. The untrained model is observed too, just
    before its first forward. Where `every` is left out, it is the power of two that keeps the
    monitor's share of the time within `budget`.

    Example:
        >>> import tempfile, torch
        >>> from joma.models.language import LanguageConfig, LanguageModel
        >>> model = LanguageModel(LanguageConfig(vocab=20, embed=8, hidden=8))
        >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Monitor(model, every=2, out=tempfile.mkdtemp()) as monitor:
        ...     for _ in range(2):
        ...         loss = model(torch.arange(12).view(2, 6)).logsumexp(-1).mean()
        ...         loss.backward()
        ...         optimiser.step()
        ...         monitor.step(loss=loss)
        >>> sorted(monitor.metrics())[:2]
        ['joma/attention_entropy/layer_00', 'joma/max_logit/layer_00']
    """

    def __init__(
        self,
        model: nn.Module,
        probes: Iterable[Probe] | None = None,
        every: int | schedule.Schedule | None = None,
        *,
        budget: float = 0.01,
        out: str | os.PathLike[str] = "joma-records",
        run: str | None = None,
        sinks: Iterable[str | AbstractSink] = (),
        source: Literal["probe", "train"] = "probe",
        batch: Any = None,
        step: int = 0,
        architecture: str | Architecture | None = None,
        judge: Callable[[int, Mapping[str, float]], Iterable[Alert]] | None = None,
        on_alert: Callable[[Alert], None] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing of the model is touched before its first forward.

        Args:
            model: What the loop calls: the compiled or DDP-wrapped model, if there is one.
            probes: Attention entropy, largest logit and stable rank, if left out.
            every: Steps between observations, or a schedule, a function of the step. Switches the
                budget off: the same run then gives the same records, times apart.
            budget: Share of the wall time, if `every` is left out.
            out: Folder of the records, a store that may hold other runs too.
            run: Name of the run. With the name of an earlier one, records go on where it ended;
                a new name, made of the time, if left out.
            sinks: Further places for the numbers of each layer, by name or as objects.
            source: `"train"` looks at the training forwards themselves: no forward of its own, but
                each reading is of another batch, so a change of a reading may be one of the data.
            batch: The fixed batch: keyword arguments of the model, a tuple of arguments, or one
                tensor. If left out, some sequences of the first training batch are kept.
            step: Updates made before, when training is resumed.
            architecture: The family of the model, if it should not be searched for.
            judge: Called with step and numbers after each observation; gives alerts.
            on_alert: Called with each alert, on rank 0.
            config: Settings of the run, kept with its records.
        """
        team.refuse(model)
        if not 0 < budget < 1:
            raise JomaError(f"budget must be a share of the time, in (0, 1); got {budget}.")
        if source not in ("probe", "train"):
            raise JomaError(f"source must be 'probe' or 'train'; got {source!r}.")
        self._model = model
        self._schedule = schedule.every(every) if isinstance(every, int) else every
        self._every: int | None = None
        self._budget = budget
        self._train = source == "train"
        self._scene = None if batch is None else scene.given(batch)
        self._step = step
        self._clock = Clock()
        self._team = Team()
        self._look = Look(
            model, DEFAULT if probes is None else tuple(probes), architecture, self._train
        )
        self._next: int | None = None
        """The step of the next observation; None before the first forward."""
        self._tapped: int | None = None
        """The step whose training forwards are being watched."""
        self._ended = False
        self._said: set[str] = set()
        name = run or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
        self._desk = Desk(name, Path(out), sinks, config, judge, on_alert)
        self._hook = ExitStack()
        self._hook.enter_context(scene.intercepted(model, self._first))
        leaving = Leaving(self._desk.flush)
        # At the latest when the interpreter ends; it holds on to the records, not to the model.
        self._finish = weakref.finalize(self, _finished, self._desk, leaving)

    @property
    def run(self) -> str:
        """Name of the run in the records."""
        return self._desk.run

    def step(
        self, loss: Scalar | None = None, lr: Scalar | None = None, grad_norm: Scalar | None = None
    ) -> None:
        """An optimiser step is done; what is known of it is recorded. Never raises.

        Args:
            loss: Of the batch that led to this step.
            lr: The learning rate it was made with.
            grad_norm: Length of the gradient, before clipping.
        """
        if self._ended:
            return
        self._clock.tick()
        with self._unharmed():
            self._advance({"loss": loss, "learning_rate": lr, "gradient_norm": grad_norm})
        self._clock.leave()

    @property
    def alerts(self) -> list[Alert]:
        """What was said so far, on rank 0; the last thousand."""
        return list(self._desk.alerts)

    def metrics(self) -> dict[str, float]:
        """The last readings on rank 0, as `joma/attention_entropy/layer_00` and so on."""
        return dict(self._desk.metrics)

    def alert(self, alert: Alert) -> None:
        """Say something about the run wherever the monitor speaks."""
        self._desk.alert(alert)

    def cost(self) -> Cost:
        """What the monitor has taken so far."""
        return self._clock.cost(self._desk.cpu)

    def flush(self) -> None:
        """Make everything that was recorded so far durable, as far as that takes some seconds."""
        self._desk.flush()

    def close(self) -> None:
        """Write what waits and let go of the model. May be called again."""
        self._end()
        with self._clock.running():
            self._finish()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any], free: bool) -> None:
        """The first forward of training is about to run: the model is untrained, or resumed."""
        self._hook.close()
        with self._unharmed():
            batch = self._scene or scene.taken(args, kwargs)
            self._scene = batch.under(scene.autocast_of(self._model))
            if free:
                with generators_kept():
                    self._begin()

    def _advance(self, scalars: dict[str, Scalar | None]) -> None:
        self._step += 1
        if self._next is None:  # the first forward did not come by here, or was not to be held up
            self._hook.close()
            with generators_kept():
                self._begin()
        if self._team.rank == 0:
            with self._quietly():
                self._desk.note(self._step, scalars)
        with generators_kept() if self._due() else nullcontext():
            if self._tapped is not None:
                self._untap(self._tapped)
            if self._step == self._next:
                self._meet()

    def _due(self) -> bool:
        return self._tapped is not None or self._step == self._next

    def _begin(self) -> None:
        self._team = team.formed(self._model)
        if self._scene is None and not self._train:
            _LOG.error(NO_FORWARD)
            self._next = NEVER
            return
        first = self._step if self._schedule is None else self._scheduled(self._step)
        self._next = self._team.hear(first)
        if self._step == self._next:
            self._meet()

    def _meet(self) -> None:
        """At the step that rank 0 has named: look."""
        start = time.perf_counter()
        here = self._team.rank == 0
        if self._train:
            self._look.enter(here)
            self._tapped, self._next = self._step, NEVER
        else:
            assert self._scene is not None
            self._look.beside(self._scene, here)
            self._conclude(self._step, Context.PROBE, start)

    def _untap(self, step: int) -> None:
        """The training forwards of one step were watched; what was seen is of the state before."""
        start = time.perf_counter()
        self._tapped = None
        self._look.leave(done=True)
        self._clock.add(self._look.inside)
        self._conclude(step, Context.TRAIN, start - self._look.inside)

    def _conclude(self, step: int, batch: Context, start: float) -> None:
        """The one collective of an observation; rank 0 says when the next one is."""
        self._clock.looked(time.perf_counter() - start)
        words = [self._plan() if self._team.rank == 0 else 0]
        shared = self._team.share(self._look.sums, self._look.failed, words)
        (self._next,) = shared.words
        found = self._look.settle(shared)
        if self._look.blind:
            _LOG.error("No probe is left. Loss, learning rate and gradient norm are recorded.")
            self._next = NEVER
        if self._team.rank != 0:
            return
        with self._quietly():
            length = None if self._scene is None else self._scene.length
            self._desk.report(step, found, batch, length, self._own())

    def _plan(self) -> int:
        """The step of the next observation, or never."""
        if self._schedule is not None:
            return self._scheduled(self._step if self._train else self._step + 1)
        every = self._clock.every(self._budget, self._step)
        if every is None:
            return self._step + REVIEW
        if self._every is not None and every < self._every:
            # Only with room to spare, or a busy machine would have it change to and fro.
            spare = self._clock.every(0.75 * self._budget, self._step)
            every = min(self._every, spare or self._every)
        if every != self._every:
            percent, self._every = 100 * self._budget, every
            _LOG.info("Step %d: every %d steps to keep to %g %%.", self._step, every, percent)
        return self._step - self._step % every + every

    def _scheduled(self, step: int) -> int:
        """The step, from this one on, at which the schedule of the user wants to look."""
        assert self._schedule is not None
        found: int | None = None
        with self._quietly():
            found = schedule.following(self._schedule, step)
        return NEVER if found is None else found

    def _own(self) -> list[Reading]:
        percent = self.cost().percent
        more = [] if math.isnan(percent) else [Reading(OVERHEAD, percent)]
        if self._clock.observed == 1 and not self._train:
            assert self._scene is not None
            more.append(Reading("probe_batch", float(self._scene.fingerprint)))
        return more

    def _end(self) -> None:
        """Let go of the model; records may still be on their way."""
        self._ended = True
        self._hook.close()
        self._look.leave(done=False)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """What goes wrong on rank 0 alone is not to part it from the others: they count on it."""
        try:
            yield
        except Exception as problem:
            if str(problem) not in self._said:
                self._said.add(str(problem))
                _LOG.warning("Left out: %s: %s", type(problem).__name__, problem)

    @contextmanager
    def _unharmed(self) -> Iterator[None]:
        """Whatever goes wrong inside ends the monitor, not the training."""
        with self._clock.running():
            try:
                yield
            except Exception as problem:
                self._end()
                unforeseen = not isinstance(problem, JomaError)
                text = "The monitor stops here and training goes on: %s"
                _LOG.error(text, problem, exc_info=unforeseen)


def _finished(desk: Desk, leaving: Leaving) -> None:
    leaving.done()
    desk.close()

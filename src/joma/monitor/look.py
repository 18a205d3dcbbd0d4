"""One observation, from a rank's point of view: look, say what failed, read what all ranks saw."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import nn

from joma.architectures.base import Architecture
from joma.monitor.harmless import beside
from joma.monitor.scene import Scene
from joma.monitor.team import Shared
from joma.monitor.watch import CHANCES, Probe, Watch, Watched, bare, unwrapped, watch
from joma.probes.attach import ObservationWarning
from joma.probes.base import AbstractStreamProbe, Sums
from joma.probes.ranks import Spot
from joma.records.schema import Reading

_LOG = logging.getLogger("joma.monitor")


class Found(NamedTuple):
    """Readings of one probe."""

    streamed: bool
    """Whether they are of a batch, or of the weights alone."""
    readings: list[Reading]


class Look:
    """Looks at one model with some probes. Raises nothing that a probe or the model raises."""

    def __init__(
        self,
        model: nn.Module,
        probes: Sequence[Probe],
        architecture: str | Architecture | None,
        train: bool,
    ):
        """`train` watches the forwards of training; else the model is run beside them."""
        self._said: set[str] = set()
        self._train = train
        self._model = unwrapped(model) if train else bare(model)
        self._watched = [Watched(probe) for probe in probes]
        self._architecture = architecture
        self._watch: Watch | None = None
        self._open: AbstractContextManager[None] | None = None
        self._weights: dict[int, list[Reading]] = {}

    @property
    def inside(self) -> float:
        """Seconds spent in probes during the forwards of training that were watched last."""
        return 0.0 if self._watch is None else self._watch.seconds

    @property
    def sums(self) -> Mapping[Spot, Sums]:
        """What this rank saw."""
        return {} if self._watch is None else self._watch.sums

    @property
    def failed(self) -> list[bool]:
        """Which probes failed on this rank."""
        return [entry.problem is not None for entry in self._watched]

    @property
    def blind(self) -> bool:
        """Whether no probe is left."""
        return not any(entry.enabled for entry in self._watched)

    def beside(self, scene: Scene, here: bool) -> None:
        """Show the batch to the model and the weights to the probes, then put everything back."""
        with self._guarded() as watch, beside(self._model):
            numbers = watch.streams()
            if numbers:
                with watch.guarded(numbers), watch.opened():
                    scene.run(self._model)
                self._say_unseen(watch)
            self._weigh(watch, here)

    def enter(self, here: bool) -> None:
        """Watch the forwards of training until `leave`; the weights are measured now."""
        with self._guarded() as watch:
            with watch.guarded(watch.streams()):
                opened = watch.opened()
                opened.__enter__()
                self._open = opened
            with beside(self._model):
                self._weigh(watch, here)

    def leave(self, done: bool) -> None:
        """The forwards of training are their own again; if `done`, there were some."""
        opened, self._open = self._open, None
        if opened is not None:
            with self._guarded() as watch:
                opened.__exit__(None, None, None)
                if done:
                    self._say_unseen(watch)

    def settle(self, shared: Shared) -> list[Found]:
        """Count failures, the same on every rank, and read the probes that did not fail."""
        found = list[Found]()
        for number, entry in enumerate(self._watched):
            streamed = isinstance(entry.probe, AbstractStreamProbe)
            readings = list[Reading]()
            if entry.enabled and shared.failed[number]:
                entry.failures += 1
                self._say_failed(entry)
                entry.problem = None
            elif entry.enabled and self._watch is not None:
                readings = self._weights.get(number, [])
                if streamed:  # if this fails, the others hear of it next time
                    readings = self._watch.streamed(number, shared.sums)
            found.append(Found(streamed, readings))
        return found

    @contextmanager
    def _guarded(self) -> Iterator[Watch]:
        """The watch, made when it is first needed. What goes wrong is a failure of all probes."""
        with ExitStack() as stack:
            # Only while it is new, when `observe` has something to say: to listen, Python
            # forgets which warnings it has shown, and the user's own would come again each time.
            if self._watch is None:
                stack.enter_context(_listening(self._say))
            try:
                if self._watch is None:
                    separate = None if self._train else False
                    about = (self._watched, self._architecture, separate, self._say)
                    self._watch = watch(self._model, *about)
                yield self._watch
            except Exception as problem:
                for entry in self._watched:
                    entry.fail(problem)

    def _weigh(self, watch: Watch, here: bool) -> None:
        kind = next(self._model.parameters()).device.type
        with torch.no_grad(), torch.autocast(kind, enabled=False):
            self._weights = {n: watch.measured(n, here) for n in watch.weighs()}

    def _say_unseen(self, watch: Watch) -> None:
        unseen = sorted({str(place.layer) for place in watch.unseen()})
        if unseen:
            self._say(f"No attention call was seen in layers {', '.join(unseen)}.")

    def _say_failed(self, entry: Watched) -> None:
        self._say(f"{entry.name} failed: {entry.problem or 'on another rank'}")
        if not entry.enabled:
            self._say(f"{entry.name} failed {CHANCES} times: it is left out from now on.")

    def _say(self, message: str) -> None:
        if message not in self._said and len(self._said) < 100:
            self._said.add(message)
            _LOG.warning(message)


@contextmanager
def _listening(say: Callable[[str], None]) -> Iterator[None]:
    """What `observe` warns of is said once; what the model warns of, it says in training too."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for one in heard:
                if issubclass(one.category, ObservationWarning):
                    say(str(one.message))

"""A model, the probes that look at it, and what went wrong with each of them.

Nothing here raises into a training loop, and probes make no collectives: a sharded matrix is put
together by the driver, and measured where rank 0 is.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from joma.architectures.base import Anatomy, Architecture, UnknownArchitectureError
from joma.probes.attach import Attachment, uncompiled
from joma.probes.base import (
    AbstractStreamProbe,
    AbstractWeightProbe,
    AttentionCall,
    Need,
    Place,
    Sums,
)
from joma.probes.observe import observe
from joma.probes.ranks import Spot
from joma.probes.slots import AbstractReceiver
from joma.probes.sums import combine
from joma.probes.weights import Weights
from joma.records.schema import Reading

Probe = AbstractStreamProbe | AbstractWeightProbe
CHANCES: Final = 3
"""Observations in which a probe may fail before it is left out."""


@dataclass
class Watched:
    """A probe and its record of failures."""

    probe: Probe
    failures: int = 0
    problem: str | None = None
    """What went wrong in this observation, on this rank."""
    warm: dict[Place, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return type(self.probe).__name__

    def fail(self, problem: BaseException | str) -> None:
        """Note a problem; of one observation, the first counts."""
        if self.problem is None:
            text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
            self.problem = text

    @property
    def enabled(self) -> bool:
        return self.failures < CHANCES


class Watch(AbstractReceiver):
    """Collects what the probes see of one model."""

    def __init__(
        self,
        model: nn.Module,
        watched: Sequence[Watched],
        anatomy: Anatomy,
        separate: bool | None,
    ):
        """`anatomy` says where things are; `separate` is that of `observe`."""
        self.watched = watched
        self.sums: dict[Spot, Sums] = {}
        self.seconds = 0.0
        """Spent in probes since the watch was opened last."""
        self._weights = Weights(model, anatomy)
        needs = {entry.probe.need for entry in watched if entry.enabled}
        self._attachment = Attachment(model, anatomy, self._weights, needs, None, True, separate)

    def streams(self) -> list[int]:
        """Numbers of the stream probes that still run."""
        return [n for n, w in enumerate(self.watched) if w.enabled and _streams(w.probe)]

    def weighs(self) -> list[int]:
        """Numbers of the weight probes that still run."""
        return [n for n, w in enumerate(self.watched) if w.enabled and not _streams(w.probe)]

    def opened(self) -> AbstractContextManager[None]:
        """A context in which forwards of the model are seen; what was seen before is forgotten."""
        self.sums, self.seconds = {}, 0.0
        return self._attachment.opened(self)

    @contextmanager
    def guarded(self, numbers: Sequence[int]) -> Iterator[None]:
        """What goes wrong inside is a failure of these probes."""
        try:
            yield
        except Exception as problem:
            for number in numbers:
                self.watched[number].fail(problem)

    def unseen(self) -> set[Place]:
        """Attentions of the model of which no call came, although probes asked for them."""
        if not any(self.watched[n].probe.need is Need.ATTENTION for n in self.streams()):
            return set()
        places = set(self._attachment.attention_modules().values()) or {Place(0)}
        return places - {place for _, place in self.sums}

    def streamed(self, number: int, sums: Mapping[Spot, Sums]) -> list[Reading]:
        """Readings of one stream probe from sums of all ranks."""
        probe, found = self.watched[number].probe, list[Reading]()
        assert isinstance(probe, AbstractStreamProbe)
        with self.guarded([number]):
            for (owner, place), held in sums.items():
                if owner == number:
                    found.extend(probe.readings(place, held))
        return found

    def measured(self, number: int, here: bool) -> list[Reading]:
        """Readings of one weight probe, if `here`; elsewhere only the shards are handed over."""
        entry, found = self.watched[number], list[Reading]()
        assert isinstance(entry.probe, AbstractWeightProbe)
        with self.guarded([number]):  # of finding the weights: the same on every rank
            for place, tensors in self._weights.shown(entry.probe.need):
                whole = {name: _whole(tensor) for name, tensor in tensors.items()}
                with self.guarded([number]):
                    if here and entry.problem is None:
                        warm = entry.warm.get(place)
                        new, entry.warm[place] = entry.probe.measure(place, whole, warm)
                        found.extend(new)
        return found

    def receive(self, place: Place, seen: Any) -> None:
        """Reduce one call to sums."""
        start = time.perf_counter()
        attention = isinstance(seen, AttentionCall)
        need = Need.ATTENTION if attention else Need.HIDDEN
        device = (seen.query if attention else seen.inputs).device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for number in self.streams():
                probe = self.watched[number].probe
                if probe.need is need:
                    assert isinstance(probe, AbstractStreamProbe)
                    with self.guarded([number]):
                        new, old = probe.observe(seen), self.sums.get((number, place))
                        self.sums[number, place] = new if old is None else combine(old, new)
        self.seconds += time.perf_counter() - start

    def note(self, place: Place, problem: BaseException) -> None:
        """A call could not be read: its probes have not seen all."""
        for number in self.streams():
            self.watched[number].fail(f"layer {place.layer}: {problem}")

    def compare(self, place: Place, value: Tensor, output: Tensor) -> None:
        """Nothing: the attachment was tried before it was used."""


def watch(
    model: nn.Module,
    watched: Sequence[Watched],
    architecture: str | Architecture | None,
    separate: bool | None,
    say: Callable[[str], None],
) -> Watch:
    """A watch with the probes that can see this model; `say` is told of the others, in one line."""
    try:
        seen = observe(model, [entry.probe for entry in watched], architecture=architecture)
        return Watch(model, watched, seen.anatomy, separate)
    except UnknownArchitectureError as unknown:
        blind = [entry for entry in watched if entry.probe.need is not Need.ATTENTION]
        for entry in blind:
            entry.failures = CHANCES
        left = ", ".join(entry.name for entry in blind)
        say(f"{unknown} Until then, {left} cannot see this model; attention is seen call by call.")
        return Watch(model, watched, Anatomy((), (), None), separate)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP, whose own forward would send buffers around."""
    parallel = type(model).__name__ == "DistributedDataParallel"
    inner: nn.Module = model.module if parallel else model  # type: ignore[assignment]
    return inner


def bare(model: nn.Module) -> nn.Module:
    """The model inside DDP and torch.compile, in whatever order."""
    inner = uncompiled(unwrapped(model))
    return model if inner is model else bare(inner)


def _streams(probe: Probe) -> bool:
    return isinstance(probe, AbstractStreamProbe)


def _whole(tensor: Any) -> Tensor:
    """A sharded matrix put together. A collective of the owners: every rank gets here."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole

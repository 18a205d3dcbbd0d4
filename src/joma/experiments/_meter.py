"""Measuring a model between two steps of its training, always in the same way.

The numbers of a step depend on the weights alone, not on what was measured before: weight probes
start cold, and torch's generators are seeded anew.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.architectures.base import Architecture
from joma.probes.base import AbstractStreamProbe, AbstractWeightProbe, Need, Place
from joma.probes.observe import Observation, observe
from joma.records.schema import OK, Context, Kind, Reading, Record

Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]
"""The loss of a model on a batch: it calls the model, so that a batch may be anything."""
Probe: TypeAlias = AbstractStreamProbe | AbstractWeightProbe


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured of a model in training, and when. Step s is the state after s updates."""

    at: Collection[int]
    """The steps, 0 for the untrained model; those after the end of training are left out."""
    batch: Any
    """One fixed batch, seen in evaluation mode and without gradients."""
    probes: tuple[Probe, ...] = ()
    """Shown the model by `observe`. The loss on the batch is recorded in any case."""
    architecture: str | Architecture | None = None
    """The family of the model, if `observe` should not search for it."""
    kind: Kind = Kind.MEASURED
    tokens: int | None = None
    """Training tokens per step, if a row should tell how many were seen."""
    sequence_length: int | None = None

    def __post_init__(self) -> None:
        for probe in self.probes:
            if probe.need is Need.MLP_IN_GRADIENT:
                raise JomaError(
                    f"{type(probe).__name__} needs gradients, which a resumed run does not have "
                    "before its first step. Leave it out of the probes."
                )


@dataclass(frozen=True)
class Meter:
    """Takes the readings of one step."""

    model: nn.Module
    loss: Loss
    measure: Measurement
    run: str
    seed: int
    seen: Observation | None = field(init=False)

    def __post_init__(self) -> None:
        probes = [
            _Cold(p) if isinstance(p, AbstractWeightProbe) else p for p in self.measure.probes
        ]
        seen = None
        if probes:
            seen = observe(self.model, probes, architecture=self.measure.architecture)
        object.__setattr__(self, "seen", seen)

    def records(self, step: int) -> Iterator[Record]:
        """The loss and every reading, each with what the model was looking at."""
        reseed(self.seed, step, 1)
        yield from self._placed(step, Context.PROBE, [self._loss()])
        if self.seen is not None:
            yield from self._placed(step, Context.PROBE, self.seen.streamed())
            yield from self._placed(step, Context.WEIGHTS, self.seen.measured())

    def _loss(self) -> Reading:
        with ExitStack() as stack:
            if self.seen is not None:
                self.seen.reset()
                stack.enter_context(self.seen)
            stack.enter_context(_evaluating(self.model))
            stack.enter_context(torch.no_grad())
            value = float(self.loss(self.model, self.measure.batch))
        status = "the loss is not a number" if math.isnan(value) else OK
        return Reading("loss", value, status=status)

    def _placed(self, step: int, context: Context, readings: Iterable[Reading]) -> Iterator[Record]:
        m = self.measure
        on_batch = context is Context.PROBE
        for reading in readings:
            yield Record(
                run=self.run,
                step=float(step),
                reading=reading,
                kind=m.kind,
                context=context,
                tokens=None if m.tokens is None else m.tokens * step,
                sequence_length=m.sequence_length if on_batch else None,
            )


class _Cold(AbstractWeightProbe):
    """A weight probe that starts afresh: a warm start depends on where a run was resumed."""

    def __init__(self, probe: AbstractWeightProbe) -> None:
        self.need = probe.need  # type: ignore[misc]
        self._probe = probe

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        return self._probe.measure(place, tensors)[0], None


def reseed(*words: int) -> None:
    """Seed torch's global generators, of the CPU and CUDA devices, from a few numbers."""
    seed = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
    # Not torch.manual_seed: without a device it notes a stack trace per call, 100 µs a step.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and back to the mode that each module was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

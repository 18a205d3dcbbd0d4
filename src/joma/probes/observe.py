"""`observe`: showing a live model's tensors to probes, and leaving nothing behind.

One context for the monitor and for experiments; there is no other way into a model. It never
replaces what the model runs: it stands beside it, looks, and hands what it sees to the probes.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from joma.architectures import registry
from joma.architectures.base import (
    Anatomy,
    Architecture,
    UnknownArchitectureError,
    find,
    locate,
)
from joma.probes import live, ranks
from joma.probes.attach import Attachment, ObservationWarning as ObservationWarning, Plan
from joma.probes.base import (
    AbstractStreamProbe,
    AbstractWeightProbe,
    AttentionCall,
    Need,
    Place,
    Sums,
)
from joma.probes.slots import AbstractReceiver
from joma.probes.sums import combine
from joma.probes.weights import Weights
from joma.records.schema import Reading


def observe(
    model: nn.Module,
    probes: Iterable[AbstractStreamProbe | AbstractWeightProbe],
    *,
    example: Mapping[str, Any] | None = None,
    check: bool = True,
    separate: bool | None = None,
    architecture: str | Architecture | None = None,
) -> "Observation":
    """A context in which `probes` see what `model` computes; the model is not changed by it.

    The context can be entered again and again, between optimiser steps: sums go on until `reset`,
    and weight probes start from their last result.

    Args:
        model: Any module. Models of transformers are observed through their attention interface,
            others through scaled_dot_product_attention, a written-out softmax, or `joma.tap`.
        probes: Stream probes, weight probes, or both.
        example: A small batch, as keyword arguments of `model`, on which the attachment is tried
            at the first entry. Made up for models of transformers if left out.
        check: Whether to try it. Costs a few forwards and backwards of the small batch.
        separate: Observe in a forward of its own, without gradients, after each of the model's.
            By default only where a compiled model leaves no other way.
        architecture: The family, by name or as an object, if it should not be searched for.

    Example:
        >>> from joma.metrics.entropy import PROBE
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> with observe(model, [PROBE]) as seen:
        ...     _ = model(torch.zeros(1, 4, 8))
        >>> reading = next(seen.readings())
        >>> reading.metric, round(reading.value, 4)  # four keys, all alike: ln 4
        ('attention_entropy', 1.3863)
    """
    shapes = live.shapes(live.tensors(model))
    chosen = list(probes)
    needs = {probe.need for probe in chosen}
    family, anatomy = _anatomy(model, shapes, architecture, needs)
    weights = Weights(model, anatomy)
    attachment = Attachment(model, anatomy, weights, needs, example, check, separate)
    return Observation(chosen, attachment, family)


class Observation(AbstractReceiver):
    """What is seen of one model. Made by `observe`."""

    def __init__(
        self,
        probes: list[AbstractStreamProbe | AbstractWeightProbe],
        attachment: Attachment,
        family: str,
    ):
        """`family` names the architecture that was found."""
        self.probes = probes
        self.family = family
        self._attachment = attachment
        self._sums: dict[ranks.Spot, Sums] = {}
        self._layout: ranks.Layout | None = None
        self._warm: dict[ranks.Spot, Any] = {}
        self._problems: dict[str, dict[int | None, None]] = {}
        self._open: AbstractContextManager[None] | None = None

    @property
    def anatomy(self) -> Anatomy:
        """Where the matrices and attentions of the model are."""
        return self._attachment.anatomy

    def plan(self) -> Plan:
        """How the model is observed; tried on the small batch if it was not before."""
        return self._attachment.plan()

    def __enter__(self) -> "Observation":
        """Attach. Refused inside a backward pass, and if the model is observed already."""
        opened = self._attachment.opened(self)
        opened.__enter__()
        self._open = opened
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Detach, then say what could not be seen."""
        assert self._open is not None
        opened, self._open = self._open, None
        opened.__exit__(kind, error, trace)
        problems, self._problems = self._problems, {}
        if kind is None:
            for problem, layers in problems.items():
                where = ", ".join(str(layer) for layer in layers if layer is not None)
                where = f" of layer {where}" if where else ""
                message = f"Calls{where} were not seen: {problem}"
                warnings.warn(message, ObservationWarning, stacklevel=2)

    def readings(self) -> Iterator[Reading]:
        """What the stream probes have seen since `reset`, then the weights as they are now."""
        yield from self.streamed()
        yield from self.measured()

    def streamed(self) -> Iterator[Reading]:
        """Readings of the stream probes, from the input upwards."""
        self._warn_of_silence()
        for number, place in sorted(self._sums, key=ranks.order):
            probe = self.probes[number]
            assert isinstance(probe, AbstractStreamProbe)
            yield from probe.readings(place, self._sums[number, place])

    def measured(self) -> Iterator[Reading]:
        """Readings of the weight probes, taken now."""
        for number, probe in enumerate(self.probes):
            if not isinstance(probe, AbstractWeightProbe):
                continue
            shown = False
            for place, tensors in self._attachment.weights.shown(probe.need):
                shown = True
                warm = self._warm.get((number, place))
                found, self._warm[number, place] = probe.measure(place, tensors, warm)
                yield from found
            if not shown:
                message = f"There is no {probe.need.value} to show to {type(probe).__name__}."
                warnings.warn(message, ObservationWarning, stacklevel=2)

    def reset(self) -> None:
        """Forget what was streamed; warm starts of weight probes stay."""
        self._sums.clear()

    def all_reduce(self, group: Any = None) -> None:
        """Replace the sums of this rank by those of all ranks. Every rank must call it."""
        if self._layout is None:
            self._layout = ranks.agreed(ranks.layout_of(self._sums), group)
        device = next(self._attachment.model.parameters()).device
        self._sums = {**ranks.added_up(self._sums, self._layout, device, group)}

    def receive(self, place: Place, seen: Any) -> None:
        """Reduce one call to sums. What a probe raises is kept for later: the model goes on."""
        attention = isinstance(seen, AttentionCall)
        need = Need.ATTENTION if attention else Need.HIDDEN
        device = (seen.query if attention else seen.inputs).device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for number, probe in enumerate(self.probes):
                if isinstance(probe, AbstractStreamProbe) and probe.need is need:
                    try:
                        new, old = probe.observe(seen), self._sums.get((number, place))
                        self._sums[number, place] = new if old is None else combine(old, new)
                    except Exception as problem:
                        self.note(place, problem)

    def note(self, place: Place, problem: BaseException) -> None:
        """Keep a problem until the context ends."""
        self._problems.setdefault(str(problem), {})[place.layer] = None

    def compare(self, place: Place, value: Tensor, output: Tensor) -> None:
        """Nothing: the attachment was tried before it was used."""

    def _warn_of_silence(self) -> None:
        expected = {Need.ATTENTION: set(self._attachment.attention_modules().values())}
        for need in {Need.ATTENTION, Need.HIDDEN} & self._attachment.needs:
            seen = {place for number, place in self._sums if self.probes[number].need is need}
            missing = expected.get(need, set()) - seen
            if missing or not seen:
                whole = f"{len(missing)} of {len(missing | seen)}" if seen else "any of the"
                warnings.warn(
                    f"No call was seen of {whole} {need.value} places. "
                    "Was the model run inside the context?",
                    ObservationWarning,
                    stacklevel=3,
                )


def _anatomy(
    model: nn.Module,
    shapes: Mapping[str, tuple[int, ...]],
    architecture: str | Architecture | None,
    needs: set[Need],
) -> tuple[str, Anatomy]:
    if isinstance(architecture, Architecture):
        return "given", locate(architecture, shapes)
    if architecture is not None:
        return architecture, locate(registry.load(architecture), shapes)
    try:
        name, found = find(shapes, live.model_types(model))
    except UnknownArchitectureError:
        if needs - {Need.ATTENTION}:
            raise
        return "unknown", Anatomy((), (), None)  # attention calls are then numbered in order
    return name, locate(found, shapes)

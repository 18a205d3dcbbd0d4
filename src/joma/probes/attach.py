"""How one model is observed: chosen by trying, and undone without a trace."""

import importlib
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from joma._core.errors import JomaError
from joma.architectures.base import Anatomy
from joma.probes import aside, coverage, functions, hidden, live
from joma.probes.base import Need, Place
from joma.probes.slots import PRIVATE, AbstractReceiver, recomputing
from joma.probes.weights import Weights

Route: TypeAlias = Literal["interface", "functions"]
"""Through the attention interface of transformers, or through the functions that are called."""


class ObservationWarning(UserWarning):
    """Something of a model was not seen, or only by a slower way. Says what and why."""


@dataclass(frozen=True)
class Plan:
    """What was chosen for one model."""

    route: Route
    separate: bool
    """In a forward of its own, after each of the model's."""
    reason: str | None = None
    """Why this is not the direct way, if it is not."""


_observed: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


@dataclass(eq=False)
class Attachment:
    """The way into one model. Nothing of the model changes before `opened` or after it."""

    model: nn.Module
    anatomy: Anatomy
    weights: Weights
    needs: set[Need]
    example: Mapping[str, Any] | None = None
    check: bool = True
    separate: bool | None = None
    _unsuited: bool = False
    """The small batch that was made up does not run on this model."""
    _plans: dict[tuple[str, ...], Plan] = field(default_factory=dict)

    @contextmanager
    def opened(self, receiver: AbstractReceiver) -> Iterator[None]:
        """Show every call of the model to `receiver` until the context ends.

        Refused inside a backward pass, and if the model is observed already.
        """
        if recomputing():
            raise JomaError("Observation starts and ends between optimiser steps, not in backward.")
        if self.model in _observed:
            raise JomaError("This model is observed already. Give all probes to one observe().")
        plan = self.plan()
        _observed.add(self.model)
        try:
            if plan.separate:
                again = _Again(self, receiver, plan.route)
                with aside.after_each_forward(self.model, again):
                    yield
            else:
                with self.watching(plan.route, receiver):
                    yield
        finally:
            _observed.discard(self.model)

    def plan(self) -> Plan:
        """How to attach, decided once for each attention implementation the model is set to."""
        names = (str(getattr(c, "_attn_implementation", "")) for c in live.configs(self.model))
        key = tuple(name.removeprefix(PRIVATE) for name in names)
        if key not in self._plans:
            self._plans[key] = plan = self._planned()
            if plan.reason is not None:
                warnings.warn(plan.reason, ObservationWarning, stacklevel=5)
        return self._plans[key]

    def attention_modules(self) -> dict[nn.Module, Place]:
        """The modules whose attention is observed."""
        by_name = live.modules(self.model)
        places = {a.module: Place(a.layer, a.site) for a in self.anatomy.attentions}
        return {by_name[name]: place for name, place in places.items() if name in by_name}

    @contextmanager
    def watching(self, route: Route, receiver: AbstractReceiver) -> Iterator[None]:
        """Everything that is needed, seen in the forwards that run now."""
        with ExitStack() as stack:
            if Need.ATTENTION in self.needs:
                stack.enter_context(self._attention(route, receiver))
            if Need.HIDDEN in self.needs:
                seen = hidden.watching(self.model, self.anatomy, self.weights, receiver)
                stack.enter_context(seen)
            yield

    def _attention(self, route: Route, receiver: AbstractReceiver) -> AbstractContextManager[None]:
        modules = self.attention_modules()
        if route == "interface":
            watch: AbstractContextManager[None] = _edge().watching(self.model, modules, receiver)
            return watch
        root = {uncompiled(self.model): None}  # no attention has a name: calls are numbered
        return functions.watching(self.model, modules or root, receiver)

    def _planned(self) -> Plan:
        route: Route = "functions"
        reason = None
        if Need.ATTENTION in self.needs:
            route, reason = self._routed()
        in_graph = route == "interface" and Need.HIDDEN not in self.needs
        in_graph = in_graph and _edge().traceable(self.model)
        separate = aside.compiled(self.model) and not in_graph
        if self.separate is not None:
            return Plan(route, self.separate, reason)
        if separate and reason is None:
            reason = (
                "The model is compiled and hooks do not fire inside its graphs: it is observed in "
                "a forward of its own, in evaluation mode, after each of its forwards."
            )
        return Plan(route, separate, reason)

    def _routed(self) -> tuple[Route, str | None]:
        """The attachment that sees this model rightly, and why not the direct one."""
        modules, inner = self.attention_modules(), _transformer(self.model)
        batch, target = self.example, uncompiled(self.model)
        if batch is None and inner is not None:
            batch, target = _edge().example(inner), uncompiled(inner)
        refused = None
        if inner is not None:
            refused = "its attention is not behind the interface of transformers"
            if modules and inner._can_set_attn_implementation() and _edge().wrappable(inner):
                refused = self._refusal("interface", target, batch, modules)
                if refused is None:
                    return "interface", self._untried(inner, batch)
        failed = self._refusal("functions", target, batch, modules) if modules else None
        if failed is None and inner is None:
            return "functions", None
        if failed is None:
            name = type(inner).__name__
            return "functions", f"{name} is observed through the functions it calls: {refused}."
        reasons = "; ".join(reason for reason in (refused, failed) if reason)
        raise coverage.CoverageError(
            f"The attention of {type(target).__name__} cannot be observed: {reasons}. "
            "Call joma.tap(query, key) inside its attention, or leave attention probes out."
        )

    def _refusal(
        self,
        route: Route,
        target: nn.Module,
        batch: Mapping[str, Any] | None,
        modules: dict[nn.Module, Place],
    ) -> str | None:
        if not self.check or batch is None:
            return None
        try:
            return coverage.verdict(target, batch, modules, lambda r: self._attention(route, r))
        except coverage.ExampleError:
            if self.example is not None:
                raise
            self._unsuited = True
            return None

    def _untried(self, inner: Any, batch: Mapping[str, Any] | None) -> str | None:
        if not self.check or (batch is not None and not self._unsuited):
            return None
        return (
            f"How {type(inner).__name__} is observed was not tried on a small batch; pass one as "
            "observe(..., example={...}) to be sure that what is seen is what it computes."
        )


@dataclass(frozen=True)
class _Again:
    """Runs the inputs of a forward once more, observed."""

    attachment: Attachment
    receiver: AbstractReceiver
    route: Route

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("past_key_values") is not None:
            problem = JomaError("a forward that was given a cache cannot be repeated")
            self.receiver.note(Place(), problem)
            return
        model = self.attachment.model
        watching = self.attachment.watching(self.route, self.receiver)
        try:
            with aside.undisturbed(model), torch.no_grad(), watching:
                uncompiled(model)(*args, **kwargs)
        except Exception as problem:
            self.receiver.note(Place(), problem)


def uncompiled(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile(module)`."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner


def _edge() -> Any:
    """The edge file for transformers, imported only when such a model is there."""
    return importlib.import_module("joma.probes.hf")


def _transformer(model: nn.Module) -> Any:
    """The transformers model inside, if any; does not import transformers to find out."""
    bases = (base for module in model.modules() for base in type(module).__mro__)
    if not any(base.__module__ == "transformers.modeling_utils" for base in bases):
        return None
    return _edge().transformer(model)

"""Observing in a forward of its own, for models whose own forward must not be touched.

Hooks do not fire inside a compiled graph, and running it eagerly would change its rounding. So
the model's forward is left alone; after it, the same inputs go through the model once more:
eager, without gradients, in evaluation mode, with the random state kept aside.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


def compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, runs as a compiled graph."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


@contextmanager
def after_each_forward(model: nn.Module, again: Callable[..., None]) -> Iterator[None]:
    """Call `again` with the inputs of each forward of `model`, once that forward is done."""
    busy = False

    def follow(args: Any, kwargs: dict[str, Any]) -> None:
        nonlocal busy
        if not busy:
            busy = True
            try:
                again(*args, **kwargs)
            finally:
                busy = False

    graph = getattr(model, "_compiled_call_impl", None)
    with ExitStack() as stack:
        if graph is None:
            handle = model.register_forward_hook(
                lambda _module, args, kwargs, _output: follow(args, kwargs), with_kwargs=True
            )
            stack.callback(handle.remove)
        else:  # compiled in place: its hooks are part of the graph

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                output = graph(*args, **kwargs)
                follow(args, kwargs)
                return output

            model._compiled_call_impl = wrapped
            stack.callback(setattr, model, "_compiled_call_impl", graph)
        yield


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, eager, and a random state of its own; everything back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type != "cpu"}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([]))
        for kind in {device.type for device in devices}:
            used = [device for device in devices if device.type == kind]
            stack.enter_context(torch.random.fork_rng(used, device_type=kind))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, mode in modes:
            module.training = False
            stack.callback(setattr, module, "training", mode)
        yield

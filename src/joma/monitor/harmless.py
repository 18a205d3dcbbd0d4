"""Running a model beside its training, and putting everything back that this may move."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from joma.probes.aside import undisturbed


@contextmanager
def beside(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, eager; afterwards flags, buffers and random states are as they were."""
    with ExitStack() as stack:
        stack.callback(_reshard, model)
        stack.enter_context(_buffers_kept(model))
        stack.enter_context(undisturbed(model))
        yield


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever is drawn inside, from the generators of a process, was not drawn afterwards."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        # The global generator of NumPy, which data pipelines of users draw from.
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        yield


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Buffers that the block changes, replaces, adds or removes are put back bit for bit."""
    held = [(module, dict(module._buffers)) for module in model.modules()]
    copies = {id(b): b.detach().clone() for _, bs in held for b in bs.values() if b is not None}
    try:
        yield
    finally:
        for module, buffers in held:
            if list(module._buffers) != list(buffers) or any(
                module._buffers[name] is not buffer for name, buffer in buffers.items()
            ):
                module._buffers.clear()
                module._buffers.update(buffers)
            for buffer in buffers.values():
                if buffer is not None and not _same(buffer, copies[id(buffer)]):
                    with torch.no_grad():
                        buffer.copy_(copies[id(buffer)])


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal, and so that a `nan` counts as changed: putting it back costs nothing."""
    return one.shape == other.shape and torch.equal(one, other)


def _reshard(model: nn.Module) -> None:
    """A forward without backward leaves the outermost weights of FSDP2 gathered."""
    for module in model.modules():
        if sharded(module):
            module.reshard()  # type: ignore[operator]


def sharded(module: nn.Module) -> bool:
    """Whether FSDP2 shards the weights of this module."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)

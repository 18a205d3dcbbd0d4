"""Showing what goes into the lower MLP matrices and what comes out, before the activation."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.architectures.base import Anatomy, Located
from joma.probes import live
from joma.probes.base import HiddenCall
from joma.probes.slots import AbstractReceiver, recomputing
from joma.probes.weights import Weights, place_of


@contextmanager
def watching(
    model: nn.Module, anatomy: Anatomy, weights: Weights, receiver: AbstractReceiver
) -> Iterator[None]:
    """Observe every lower MLP matrix until the context ends; the hooks are then gone."""
    by_tensor: dict[str, list[Located]] = defaultdict(list)
    for mlp in anatomy.mlps:
        for matrix in mlp.lower:
            by_tensor[matrix.name].append(matrix)
    if not by_tensor:
        raise JomaError("No lower MLP matrix of this model was located: nothing hidden to observe.")
    modules = live.modules(model)
    with ExitStack() as stack:
        for name, matrices in by_tensor.items():
            module = modules[name.rpartition(".")[0]]
            if matrices[0].stacked:
                hook = _experts_hook(matrices, weights, receiver)
            else:
                hook = _linear_hook(matrices, receiver)
            handle = module.register_forward_hook(hook, prepend=True, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _linear_hook(matrices: list[Located], receiver: AbstractReceiver) -> Any:
    """For a module that maps x to Wx + b; fused matrices share it."""

    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if recomputing():
            return
        for matrix in matrices:
            place = place_of(matrix)
            try:
                inputs = (args[0] if args else next(iter(kwargs.values()))).detach()
                outputs = output.detach()
                if matrix.outputs is not None:
                    outputs = outputs[..., matrix.outputs]
                seen = HiddenCall(inputs=inputs, preactivation=outputs)
            except Exception as problem:
                receiver.note(place, problem)
            else:
                receiver.receive(place, seen)

    return hook


def _experts_hook(matrices: list[Located], weights: Weights, receiver: AbstractReceiver) -> Any:
    """For a stack of experts called as (tokens, chosen experts, their weights).

    Kernels that run all experts at once do not show what stands before the activation, so the
    product is computed again, for the tokens that were routed to each expert.
    """

    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if recomputing():
            return
        for matrix in matrices:
            place = place_of(matrix)
            try:
                tokens, chosen = [*args, *kwargs.values()][:2]
                with torch.no_grad():
                    seen = _routed(tokens.detach(), chosen, matrix, weights)
            except Exception as problem:
                receiver.note(place, problem)
            else:
                if seen is not None:
                    receiver.receive(place, seen)

    return hook


def _routed(tokens: Tensor, chosen: Tensor, matrix: Located, weights: Weights) -> HiddenCall | None:
    tokens = tokens.flatten(0, -2)
    rows = torch.eq(chosen.reshape(len(tokens), -1), matrix.expert or 0).any(-1)
    if not bool(rows.any()):
        return None
    inputs = tokens[rows]
    outputs = inputs @ weights.matrix(matrix).mT
    bias = weights.bias(matrix)
    return HiddenCall(inputs=inputs, preactivation=outputs if bias is None else outputs + bias)

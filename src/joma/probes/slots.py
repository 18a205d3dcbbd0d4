"""How a call inside a model finds the observation it belongs to: by the ticket of its module.

A ticket is a number in a tensor on the attention module: a tensor, because one compiled graph then
serves all layers. Under `torch.compile` the call is shown through an operator with an effect, which
the compiler can neither remove nor look into. Nothing here knows what is done with a call.
"""

import abc
import importlib
import itertools
from typing import Any, Final, no_type_check

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from joma.probes import calls
from joma.probes.base import Place

PRIVATE: Final = "joma_"
"""What stands before the name of an attention implementation while it is observed."""

_counter = itertools.count()
_receivers: dict[int, tuple["AbstractReceiver", Place]] = {}


class AbstractReceiver(abc.ABC):
    """What an attachment hands its calls to. Must not raise: it runs inside someone's forward."""

    @abc.abstractmethod
    def receive(self, place: Place, seen: Any) -> None:
        """Look at one call (`AttentionCall` or `HiddenCall`). Valid only now."""

    @abc.abstractmethod
    def note(self, place: Place, problem: BaseException) -> None:
        """A call at this place could not be read."""

    @abc.abstractmethod
    def compare(self, place: Place, value: Tensor, output: Tensor) -> None:
        """What the model computed from the call just received, (batch, query, head, width)."""


def recomputing() -> bool:
    """Whether this forward is gradient checkpointing's second one, inside the backward pass."""
    return torch._C._current_graph_task_id() != -1


def issue(receiver: AbstractReceiver, place: Place) -> Tensor:
    """A ticket; belongs on a module, as a plain attribute."""
    number = next(_counter)
    _receivers[number] = (receiver, place)
    return torch.tensor(number)


def revoke(ticket: Tensor) -> None:
    """Forget a ticket; calls that still carry it are ignored."""
    _receivers.pop(int(ticket), None)


@no_type_check  # traced by torch.compile, which cannot look through runtime type checks
def show(
    ticket, kind, query, key, mask, bias, sinks, borders, positions, scale, cap, window, causal
):
    """Show one call of an implementation of transformers; see `calls.read`."""
    bias = None if bias is None else bias.detach()
    sinks = None if sinks is None else sinks.detach()
    mask = mask.detach() if isinstance(mask, Tensor) else mask
    parts = (query.detach(), key.detach(), mask)
    rest = (bias, sinks, borders, positions, scale, cap, window, causal)
    if torch.compiler.is_compiling():
        if mask is None or isinstance(mask, Tensor):
            see_attention(ticket, kind, *parts, *rest)
    else:
        _deliver(ticket, kind, *parts, *rest)


@no_type_check
def compare(ticket, value, output):
    """Let the receiver compare the call just shown with what the model computed from it."""
    if not torch.compiler.is_compiling() and not recomputing():
        held = _receivers.get(int(ticket))
        if held is not None:
            held[0].compare(held[1], value, output)


def _deliver(
    ticket: Tensor,
    kind: str,
    query: Tensor,
    key: Tensor,
    mask: Any,
    bias: Tensor | None,
    sinks: Tensor | None,
    borders: Tensor | None,
    positions: Tensor | None,
    scale: float | None,
    cap: float | None,
    window: int | None,
    causal: bool,
) -> None:
    held = _receivers.get(int(ticket))
    if held is None or recomputing():
        return
    receiver, place = held
    try:
        with torch.no_grad():
            call = calls.read(
                kind,
                query,
                key,
                mask,
                bias=bias,
                sinks=sinks,
                cu_seqlens=borders,
                position_ids=positions,
                scale=scale,
                softcap=cap,
                window=window,
                causal=causal,
            )
    except Exception as problem:
        receiver.note(place, problem)
    else:
        receiver.receive(place, call)


# A buffer that the operator writes would do too, but activation checkpointing keeps it for backward
# and then finds it changed; so writing is only declared where torch knows no effects yet.
_EFFECTS: Final = hasattr(CustomOpDef, "register_effect")


@torch.library.custom_op("joma::see_attention", mutates_args=() if _EFFECTS else ("ticket",))
@no_type_check
def see_attention(
    ticket: Tensor,
    kind: str,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    borders: Tensor | None,
    positions: Tensor | None,
    scale: float | None,
    cap: float | None,
    window: int | None,
    causal: bool,
) -> None:
    """`show`, as the compiler sees it."""
    rest = (bias, sinks, borders, positions, scale, cap, window, causal)
    _deliver(ticket, kind, query, key, mask, *rest)


@see_attention.register_fake
@no_type_check
def _(ticket, kind, query, key, mask, bias, sinks, borders, positions, scale, cap, window, causal):
    return None


if _EFFECTS:
    effects = importlib.import_module("torch._library.effects")
    see_attention.register_effect(effects.EffectType.ORDERED)

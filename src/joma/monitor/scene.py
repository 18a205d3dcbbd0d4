"""What the model is shown when it is observed: one fixed batch, as training would show it.

The batch is the one given, or the first that training runs, of which a part is kept. Autocast is
set as it was in that first forward.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from joma.monitor.harmless import sharded

TOKENS: Final = 1024
"""Of the first training batch, as many sequences are kept as make up this many tokens, or one."""
_STATEFUL: Final = ("past_key_values", "cache_params")
"""Arguments that a forward writes into."""


@dataclass(frozen=True)
class Scene:
    """Arguments of a forward, and the autocast it ran under."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    autocast: torch.dtype | None = None
    """Half precision of the forward; None if autocast was off."""

    def under(self, autocast: torch.dtype | None) -> "Scene":
        """The same batch, in the precision of another forward."""
        return replace(self, autocast=autocast)

    def run(self, model: nn.Module) -> None:
        """Show the batch to the model. What it returns is dropped."""
        kind = next(model.parameters()).device.type
        dtype, on = self.autocast, self.autocast is not None
        # Without the cache: it would keep weights cast under no_grad, which have no gradient.
        with torch.no_grad(), torch.autocast(kind, dtype, on, cache_enabled=False):
            model(*self.args, **self.kwargs)

    @property
    def length(self) -> int | None:
        """Tokens of a sequence, if the first tensor has rows of tokens."""
        first = next((t for t in _tensors([self.args, self.kwargs]) if t.ndim > 1), None)
        return None if first is None else first.shape[1]

    @property
    def fingerprint(self) -> int:
        """A number that says whether two batches are the same."""
        number = 0
        for tensor in _tensors([self.args, self.kwargs]):
            plain = tensor.detach().cpu().contiguous().flatten()
            number = zlib.crc32(plain.view(torch.uint8).numpy().tobytes(), number)
        return number


def given(batch: Any) -> Scene:
    """A scene of a batch that a user hands over: keyword arguments, arguments, or one tensor."""
    if isinstance(batch, Mapping):
        return Scene(kwargs=_kept(dict(batch)))
    return Scene(args=_kept(batch if isinstance(batch, tuple) else (batch,)))


def taken(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Scene:
    """A scene of a training batch: a copy of its first sequences, on the device it is on."""
    kwargs = {name: value for name, value in kwargs.items() if name not in _STATEFUL}
    rows = _rows([args, kwargs])
    return Scene(_kept(args, rows), _kept(kwargs, rows))


def autocast_of(model: nn.Module) -> torch.dtype | None:
    """The precision that autocast, if it is on, gives a forward of the model here and now."""
    kind = next(model.parameters()).device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


@contextmanager
def intercepted(
    model: nn.Module, see: Callable[[tuple[Any, ...], dict[str, Any], bool], None]
) -> Iterator[None]:
    """Call `see` with the arguments of each forward with gradients, just before it runs.

    The last argument says whether the model may be run here: not if it was sharded after this
    began, because the hooks of FSDP2 have then opened it for its own forward already.
    """

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Inside a graph that someone else compiles, nothing may happen.
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            first = next(iter(model._forward_pre_hooks), None)
            see(args, kwargs, first == number or not sharded(model))

    graph = getattr(model, "_compiled_call_impl", None)
    number: int | None = None
    if graph is None:
        # First of all hooks: those of a sharding engine open the model for its own forward.
        handle = model.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        number = handle.id
        try:
            yield
        finally:
            handle.remove()
        return

    def called(*args: Any, **kwargs: Any) -> Any:
        before(model, args, kwargs)
        return graph(*args, **kwargs)

    model._compiled_call_impl = called
    try:
        yield
    finally:
        if model._compiled_call_impl is called:
            model._compiled_call_impl = graph


def _kept(value: Any, rows: int | None = None) -> Any:
    """A copy whose tensors nobody else writes into, cut to `rows` sequences."""
    if isinstance(value, Tensor):
        part = value if rows is None or value.ndim == 0 or len(value) == 1 else value[:rows]
        return part.detach().clone()
    if isinstance(value, Mapping):
        return {name: _kept(one, rows) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_kept(one, rows) for one in value)
    return value


def _rows(value: Any) -> int | None:
    """How many sequences to keep; None if the batch cannot be cut, or need not be."""
    tensors = [t for t in _tensors(value) if t.ndim]
    if not tensors or tensors[0].ndim < 2:
        return None
    batch = len(tensors[0])
    if any(len(t) not in (1, batch) for t in tensors):
        return None
    rows = max(1, TOKENS // max(1, tensors[0].shape[1]))
    return rows if rows < batch else None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)

"""Watching attention that no interface announces: by the functions it calls.

While an attention module runs, and only then, a `TorchFunctionMode` looks at the calls of
scaled_dot_product_attention and, in models that write their attention out, of the softmax over
keys whose result then multiplies the values. The functions themselves run unchanged.
"""

import itertools
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from joma._core.errors import JomaError
from joma.probes import calls, live
from joma.probes.base import AttentionCall, Place
from joma.probes.slots import AbstractReceiver, recomputing

_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum")

# The same function, but it does not hand itself over to the mode as a whole: what it calls is seen.
_open_multi_head = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


class Watch(TorchFunctionMode):
    """Sees the attention of one module during one forward."""

    def __init__(self, receiver: AbstractReceiver, place: Place | None, heads: int | None):
        """Without a `place`, calls are numbered: the n-th is layer n."""
        super().__init__()
        self._receiver = receiver
        self._place = place
        self._heads = heads
        self._pending: Tensor | None = None
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the function as it is, then look at what it was given."""
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _open_multi_head(*args, **kwargs)
        output = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._pending = None
            self._show(lambda: calls.read_sdpa(*args, **kwargs))
            value = args[2] if len(args) > 2 else kwargs["value"]
            self._receiver.compare(self.place, value, output.transpose(-3, -2))
        elif func in _SOFTMAX:
            self._softmax(args, kwargs)
        elif self._pending is not None and getattr(func, "__name__", "") in _PRODUCTS:
            self._product(args)
        return output

    @property
    def place(self) -> Place:
        """Where the call just shown stands."""
        return Place(layer=max(0, self.count - 1)) if self._place is None else self._place

    def show(self, call: AttentionCall) -> None:
        """A call that was handed over by `joma.tap`."""
        self._show(lambda: call)

    def finish(self) -> None:
        """The module is done: a softmax that met no values was not its attention."""
        if self._pending is not None and not self.count:
            self._receiver.note(
                self.place,
                JomaError(
                    f"a softmax over {self._pending.shape[-1]} columns was seen, but no product "
                    "of that many columns with values: this is not plain attention"
                ),
            )

    def _softmax(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        scores = args[0] if args else kwargs["input"]
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        if scores.ndim in (3, 4) and axis in (-1, scores.ndim - 1) and scores.is_floating_point():
            self._pending = scores

    def _product(self, args: Sequence[Any]) -> None:
        scores = self._pending
        assert scores is not None
        flat = [a for arg in args for a in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        tensors = [a for a in flat if isinstance(a, Tensor)]
        keys = scores.shape[-1]
        for left, right in itertools.pairwise(tensors):
            if left.shape[-2:] == scores.shape[-2:] and keys in right.shape:
                self._pending = None
                self._show(lambda: calls.read_softmax(scores, self._heads))
                return

    def _show(self, read: Any) -> None:
        self.count += 1
        try:
            with torch.no_grad():
                call = read()
        except Exception as problem:
            self._receiver.note(self.place, problem)
        else:
            self._receiver.receive(self.place, call)


_running: list[Watch] = []


def running() -> Watch | None:
    """The watch of the attention module that runs now, if it is observed."""
    return _running[-1] if _running else None


@contextmanager
def watching(
    model: nn.Module, modules: Mapping[nn.Module, Place | None], receiver: AbstractReceiver
) -> Iterator[None]:
    """Observe these attention modules until the context ends; their hooks are then gone."""
    with ExitStack() as stack:
        for module, place in modules.items():
            for handle in _hooked(module, place, live.head_count(model, module), receiver):
                stack.callback(handle.remove)
        yield


def _hooked(
    module: nn.Module, place: Place | None, heads: int | None, receiver: AbstractReceiver
) -> Iterator[Any]:
    opened: list[Watch] = []

    def before(module: nn.Module, args: Any) -> None:
        if not recomputing():
            watch = Watch(receiver, place, heads)
            watch.__enter__()  # type: ignore[no-untyped-call]
            opened.append(watch)
            _running.append(watch)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if opened and not recomputing():
            _running.pop()
            watch = opened.pop()
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            watch.finish()

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after, prepend=True, always_call=True)

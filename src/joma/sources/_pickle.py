"""The table of contents of a `.bin` file, without unpickling it.

A pickle is a small program. This is an interpreter of the few instructions that a table of tensors
needs, in which nothing is ever imported or called: a global is a word that must be on the
list below, and "calling" one builds a description. Any other instruction or word is refused.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joma.sources._dtypes import STORAGES
from joma.sources._errors import HostileFileError

LARGEST = 4_000_000
"""Bytes of a table of contents. A tensor takes about 130, and a hostile byte up to a hundred."""
_DEEPEST = 200  # open marks: nested containers, of which a table of tensors has three

_DICT, _TENSOR, _PARAMETER = "dict", "tensor", "parameter"
_WORDS = {
    ("collections", "OrderedDict"): _DICT,
    ("torch._utils", "_rebuild_tensor_v2"): _TENSOR,
    ("torch._utils", "_rebuild_parameter"): _PARAMETER,
} | {("torch", name): dtype for name, dtype in STORAGES.items()}


class RefusedPickleError(Exception):
    """What the pickle wanted; becomes part of a sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A global on the list. It stands for something and does nothing."""

    means: str


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Where the numbers of tensors are: the entry `key` of the zip file."""

    dtype: str
    key: str
    numel: int


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A tensor: a storage, and how to walk it."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def views(data: bytes, file: str) -> dict[Any, Any]:
    """What a pickled table of tensors describes: names to `View`s, and whatever else is in it.

    Raises:
        HostileFileError: The pickle wants anything but to list tensors; says what.
    """
    try:
        found = _Machine(data).run()
    except RefusedPickleError as refused:
        raise HostileFileError(
            f"{file} is a pickle that {refused}. Here a pickle may list tensors and do nothing "
            "else; nothing of it was run. Save the weights as safetensors where you trust it."
        ) from None
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, ValueError):
        raise HostileFileError(f"{file} holds a damaged pickle; nothing of it is used.") from None
    if not isinstance(found, dict):
        raise HostileFileError(f"{file} holds a {type(found).__name__}, not a table of tensors.")
    return found


class _Machine:
    """Stack, memo and place in the program. Steps are bounded by the bytes of the program."""

    def __init__(self, data: bytes):
        self.data = data
        self.place = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            code = self.take(1)
            if code == b".":
                return self.stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise RefusedPickleError(f"uses instruction {code!r}")
            step(self)

    def take(self, size: int) -> bytes:
        found = self.data[self.place : self.place + size]
        if len(found) < size:
            raise IndexError
        self.place += size
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, form: str) -> str:
        return self.take(self.number(form)).decode("utf-8")

    def line(self) -> str:
        end = self.data.index(b"\n", self.place)
        return self.take(end + 1 - self.place)[:-1].decode("utf-8")

    def mark(self) -> None:
        if len(self.marks) >= _DEEPEST:
            raise RefusedPickleError(f"nests containers more than {_DEEPEST} deep")
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self.marks.pop()
        return found

    def push(self, found: Any) -> None:
        self.stack.append(found)

    def put(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def get(self, key: int) -> None:
        if key not in self.memo:
            raise IndexError
        self.stack.append(self.memo[key])

    def tuple(self, size: int) -> None:
        if len(self.stack) < size:
            raise IndexError
        found = tuple(self.stack[len(self.stack) - size :])
        del self.stack[len(self.stack) - size :]
        self.stack.append(found)

    def word(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise IndexError
        if (module, name) not in _WORDS:
            raise RefusedPickleError(f"asks for {f'{module}.{name}'[:80]!r}")
        self.stack.append(Word(_WORDS[module, name]))

    def set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise IndexError
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Anything else may be built so that hashing it takes forever.
            if type(key) not in (str, int):
                raise RefusedPickleError(f"uses a {type(key).__name__} as a key")
            target[key] = value

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise IndexError
        self.stack[-1].extend(items)

    def reduce(self) -> None:
        arguments, word = self.stack.pop(), self.stack.pop()
        if type(word) is not Word or type(arguments) is not tuple:
            raise RefusedPickleError("calls something that is not a tensor")
        if word.means == _DICT and arguments in ((), ([],)):
            self.stack.append({})
        elif word.means == _TENSOR:
            self.stack.append(_view(arguments))
        elif word.means == _PARAMETER and arguments and type(arguments[0]) is View:
            self.stack.append(arguments[0])
        else:
            raise RefusedPickleError(f"calls {word.means} with arguments torch never writes")

    def storage(self) -> None:
        match self.stack.pop():
            case ("storage", Word(means=dtype), str(key), str(), int(numel)):
                if dtype not in STORAGES.values() or not 0 <= numel < 2**63:
                    raise RefusedPickleError("describes a storage of no known type or size")
                self.stack.append(Storage(dtype, key, numel))
            case _:
                raise RefusedPickleError("has a persistent id that is not a storage")

    def build(self) -> None:
        """Attributes of a dictionary (`_metadata` of a state dict): left out."""
        self.stack.pop()
        if type(self.stack[-1]) is not dict:
            raise RefusedPickleError("sets attributes of something that is not a dictionary")


def _view(arguments: tuple[Any, ...]) -> View:
    match arguments:
        case (Storage() as storage, int(offset), tuple(shape), tuple(stride), bool(), {}, *_) if (
            len(shape) == len(stride) <= 16
            and all(type(n) is int and 0 <= n < 2**63 for n in (offset, *shape, *stride))
        ):
            return View(storage, offset, shape, stride)
    raise RefusedPickleError("builds a tensor from arguments torch never writes")


_STEPS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # protocol
    b"\x95": lambda m: m.take(8),  # frame
    b"(": _Machine.mark,
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"J": lambda m: m.push(m.number("<i")),
    b"\x8a": lambda m: m.push(int.from_bytes(m.take(m.number("<B")), "little", signed=True)),
    b"G": lambda m: m.push(m.number(">d")),
    b"X": lambda m: m.push(m.text("<I")),
    b"\x8c": lambda m: m.push(m.text("<B")),
    b"q": lambda m: m.put(m.number("<B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"h": lambda m: m.get(m.number("<B")),
    b"j": lambda m: m.get(m.number("<I")),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.tuple(1),
    b"\x86": lambda m: m.tuple(2),
    b"\x87": lambda m: m.tuple(3),
    b"s": lambda m: m.set([m.stack.pop(-2), m.stack.pop()]),
    b"u": lambda m: m.set(m.since_mark()),
    b"a": lambda m: m.extend([m.stack.pop()]),
    b"e": lambda m: m.extend(m.since_mark()),
    b"c": lambda m: m.word(m.line(), m.line()),
    b"\x93": lambda m: m.word(m.stack.pop(-2), m.stack.pop()),
    b"R": _Machine.reduce,
    b"Q": _Machine.storage,
    b"b": _Machine.build,
}

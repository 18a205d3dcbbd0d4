"""Where the tensors of a revision are, and which byte ranges to ask for."""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from joma._core.registry import closest
from joma.sources._errors import SourceError

SLACK = 0.004
"""Bytes that may be read for nothing, to join neighbours, as a share of the bytes asked for."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: what it is, and where its bytes are.

    In a safetensors file `stop - start` is `nbytes`. In a zip-format `.bin` the range is the
    entry of the tensor's storage, with its local header (about a hundred bytes more).
    """

    name: str
    dtype: str
    """As a safetensors header spells it: `F16`, `BF16`, `F32`, `I64`."""
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int
    nbytes: int
    stride: tuple[int, ...] | None = None
    """In elements; `None` if rows follow each other, as in every safetensors file."""
    offset: int = 0
    """Of the first element in its storage, in elements. Not 0 only in `.bin` files."""
    storage: int | None = None
    """Bytes of the storage in a `.bin` file; `None` in safetensors, where there is none."""
    entry: str = ""
    """Name of the storage's zip entry."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a revision: its size, and a tag that changes when its content does."""

    name: str
    size: int
    etag: str | None


class Range(NamedTuple):
    """Bytes `start` to `stop` (exclusive) of a file."""

    file: str
    start: int
    stop: int


@dataclass(frozen=True)
class Index:
    """The tensors of one revision, by name, and the files they are in."""

    revision: str
    tensors: Mapping[str, TensorInfo]
    files: Mapping[str, FileInfo]
    commit: str | None = None
    """What the revision pointed to when it was read; `None` where there is no such thing."""
    overhead: int = 0
    """Bytes of headers that were read to learn all this."""

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor, as `architectures.find` takes them."""
        return {name: info.shape for name, info in self.tensors.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    def pick(self, names: Iterable[str]) -> tuple[TensorInfo, ...]:
        """The tensors of these names, in this order.

        Raises:
            SourceError: A name that is not there; says which are close.
        """
        picked = []
        for name in names:
            if name not in self.tensors:
                raise SourceError(
                    f"Revision {self.revision!r} has no tensor {name!r}."
                    f"{closest(name, sorted(self.tensors)[:40])}"
                )
            picked.append(self.tensors[name])
        return tuple(picked)


def coalesced(tensors: Iterable[TensorInfo]) -> tuple[Range, ...]:
    """The fewest byte ranges that hold these tensors and waste at most `SLACK` of their bytes."""
    spans: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for info in tensors:
        if info.stop > info.start:
            spans[info.file].add((info.start, info.stop))
    ranges = [Range(file, *span) for file in sorted(spans) for span in _united(spans[file])]
    budget = SLACK * sum(r.stop - r.start for r in ranges)
    gaps = sorted(
        (b.start - a.stop, i)
        for i, (a, b) in enumerate(itertools.pairwise(ranges))
        if a.file == b.file
    )
    joined = set()
    for gap, i in gaps:
        budget -= gap
        if budget < 0:
            break
        joined.add(i)
    result: list[Range] = []
    for i, found in enumerate(ranges):
        if i - 1 in joined:
            result[-1] = result[-1]._replace(stop=found.stop)
        else:
            result.append(found)
    return tuple(result)


def _united(spans: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that touch or overlap, as one."""
    united: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(stop, united[-1][1])
        else:
            united.append((start, stop))
    return united

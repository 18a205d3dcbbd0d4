"""From the files of a revision to its index and its tensors."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from joma.sources import _bin, _safetensors, _zip
from joma.sources._bytes import AbstractFiles, fetched
from joma.sources._dtypes import DTYPES
from joma.sources._errors import HostileFileError, SourceError
from joma.sources._index import FileInfo, Index, Range, TensorInfo, coalesced
from joma.sources._json import parsed

_LARGEST_JSON = 12_000_000
_TABLES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")
_ASIDE = ("training_args.bin", "optimizer.", "scheduler.", "rng_state", "scaler.", "adapter_model.")
"""Files beside the weights that have their suffixes."""

_Header = Callable[[AbstractFiles, FileInfo], tuple[dict[str, TensorInfo], int]]


def has_weights(names: Iterable[str]) -> bool:
    """Whether files of these names include weights."""
    names = set(names)
    return bool(names & {*_TABLES, *_SINGLE}) or any(_is_weights(name) for name in names)


def index(files: AbstractFiles, revision: str, commit: str | None = None) -> Index:
    """The tensors of a revision. safetensors are preferred to `.bin`, where there are both."""
    listing = files.listing()
    tables = [name for name in (_TABLES[0], _SINGLE[0], _TABLES[1], _SINGLE[1]) if name in listing]
    if not tables:
        tables = [name for name in listing if _is_weights(name)]
        if len(tables) != 1:
            raise SourceError(
                f"Revision {revision!r} has {len(tables)} files that could be its weights, and "
                f"none of {', '.join((*_TABLES, *_SINGLE))}. Its files: {sorted(listing)[:12]}."
            )
    first = listing[tables[0]]
    if first.name in _TABLES:
        return _sharded(files, listing, first, revision, commit)
    tensors, cost = _header_of(first.name)(files, first)
    return Index(revision, tensors, {first.name: first}, commit, cost)


def read(
    files: AbstractFiles, found: Index, names: Iterable[str], device: str | None = None
) -> dict[str, Tensor]:
    """Tensors by name. Ranges are fetched at once, as many as the files allow."""
    wanted = found.pick(dict.fromkeys(names))
    ranges = coalesced(wanted)
    buffers = {r: torch.empty(r.stop - r.start, dtype=torch.uint8) for r in ranges}
    jobs = [
        (found.files[r.file], r.start + at, _memory(buffers[r])[at : at + files.piece])
        for r in ranges
        for at in range(0, r.stop - r.start, files.piece)
    ]
    if files.threads == 1 or len(jobs) == 1:
        for job in jobs:
            files.fetch(*job)
    else:
        with ThreadPoolExecutor(min(files.threads, len(jobs))) as pool:
            list(pool.map(lambda job: files.fetch(*job), jobs))
    tensors = {info.name: _tensor(info, buffers) for info in wanted}
    return tensors if device is None else {n: t.to(device) for n, t in tensors.items()}


def config(files: AbstractFiles) -> dict[str, Any]:
    """The `config.json`; empty if there is none."""
    file = files.listing().get("config.json")
    return {} if file is None else _json_of(files, file)


def _sharded(
    files: AbstractFiles,
    listing: Mapping[str, FileInfo],
    table: FileInfo,
    revision: str,
    commit: str | None,
) -> Index:
    places = _json_of(files, table).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise HostileFileError(f"{table.name} must map names to files under 'weight_map'.")
    shards: dict[str, dict[str, TensorInfo]] = {}
    cost = table.size
    for shard in sorted(set(places.values())):
        # Only files that the revision lists: a shard cannot point out of its directory.
        if shard not in listing:
            raise HostileFileError(
                f"{table.name} names the file {shard[:80]!r}, which is not among the files of "
                f"revision {revision!r}: {sorted(listing)[:12]}."
            )
        shards[shard], spent = _header_of(shard)(files, listing[shard])
        cost += spent
    tensors = {}
    for name, shard in places.items():
        _safetensors.checked_name(name, table.name)
        if name not in shards[shard]:
            raise HostileFileError(
                f"{table.name} says that {name!r} is in {shard}; it is not there."
            )
        tensors[name] = shards[shard][name]
    return Index(revision, tensors, {shard: listing[shard] for shard in shards}, commit, cost)


def _tensor(info: TensorInfo, buffers: Mapping[Range, Tensor]) -> Tensor:
    dtype = DTYPES[info.dtype]
    if not info.nbytes:
        return torch.empty(info.shape, dtype=dtype)
    within, buffer = next(
        (r, b)
        for r, b in buffers.items()
        if r.file == info.file and r.start <= info.start and info.stop <= r.stop
    )
    data = buffer[info.start - within.start : info.stop - within.start]
    if info.storage is not None:
        entry = _zip.Entry(info.entry, info.start, info.stop, info.storage)
        place = _zip.content(entry, _memory(data), info.file)
        data = torch.frombuffer(place, dtype=torch.uint8)
    if data.data_ptr() % dtype.itemsize:  # kernels assume aligned numbers
        data = data.clone()
    flat = data.view(dtype)
    if info.stride is None:
        return flat.view(info.shape)
    return flat.as_strided(info.shape, info.stride, info.offset + flat.storage_offset())


def _memory(data: Tensor) -> memoryview:
    return data.numpy().data


def _header_of(name: str) -> _Header:
    return _safetensors.header if name.endswith(".safetensors") else _bin.header


def _is_weights(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.startswith(_ASIDE)


def _json_of(files: AbstractFiles, file: FileInfo) -> dict[str, Any]:
    if file.size > _LARGEST_JSON:
        raise HostileFileError(
            f"{file.name} has {file.size} bytes; above {_LARGEST_JSON} none is read."
        )
    return parsed(fetched(files, file, 0, file.size), file.name)

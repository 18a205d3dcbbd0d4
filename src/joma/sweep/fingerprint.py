"""Fingerprints of stored tensors: enough to tell copies, strangers and damage, in a few numbers.

Per tensor: a hash of its bytes, its norm, how many elements are not finite, dtype and shape, and a
sketch, a random projection to 32 numbers. Distances between sketches are unbiased estimates of
distances between tensors, so that a trajectory can be followed without keeping a weight.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from joma.architectures.base import QuantisedWeightsError, UnknownArchitectureError
from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.records.schema import Reading
from joma.sources.base import Index, TensorInfo
from joma.sweep.shown import Spot, spots as spots_of

NEED: Final = "fingerprint"
UNCOVERED: Final = "*"
"""The spot that stands for one tensor of each file in which none was chosen."""
BUCKETS: Final = 32
_LENGTH: Final = 4096
_GROUP: Final = 64  # blocks at once: 16 MB of float32
_FLOATS: Final = ("F16", "BF16", "F32", "F64")


class FingerprintProbe(AbstractWeightProbe):
    """Shown single tensors by name, whatever they are; see `spots`."""

    need: ClassVar = Need.MLP_IN

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        """The fingerprint of `weight`, as readings `fingerprint_…` at its place."""
        weight = tensors["weight"]
        sketch, squares, bad = _projected(weight)
        readings = [
            place.reading("fingerprint_hash", float(_hash(weight))),
            place.reading("fingerprint_nonfinite", float(bad)),
            place.reading(f"fingerprint_dtype_{str(weight.dtype).removeprefix('torch.')}", 1.0),
            *(
                place.reading("fingerprint_size", float(n), head=i)
                for i, n in enumerate(weight.shape)
            ),
        ]
        if bad:
            readings.append(place.reading("fingerprint_norm", math.nan, status="not finite"))
            return readings, None
        readings.append(place.reading("fingerprint_norm", math.sqrt(squares)))
        values = sketch.tolist()
        readings += [place.reading("fingerprint_sketch", v, head=i) for i, v in enumerate(values)]
        return readings, None


PROBE = FingerprintProbe()


def chosen(index: Index, config: Mapping[str, Any], sample: int | None) -> tuple[str, ...]:
    """Names of the tensors to look at.

    Without `sample` the lower MLP matrices, which a sweep reads anyway (all matrices, if the family
    is not known); with it, so many tensors of each file, picked by a hash of their names.
    """
    floats = _floats(index)
    if sample is None:
        try:
            found = spots_of(Need.MLP_IN, index, config)
        except (UnknownArchitectureError, QuantisedWeightsError):
            return tuple(sorted(info.name for info in floats if len(info.shape) == 2))
        return tuple(sorted({name for spot in found for name in spot.names}))
    files: dict[str, list[str]] = {}
    for info in floats:
        files.setdefault(info.file, []).append(info.name)
    return tuple(sorted(n for names in files.values() for n in sorted(names, key=_lot)[:sample]))


def coverage(index: Index, names: tuple[str, ...]) -> float:
    """Share of the floating-point tensors that are looked at: the chance to see one damaged."""
    there = {info.name for info in _floats(index)}
    return len(there & {spot.names[0] for spot in spots(index, names)}) / max(1, len(there))


def spots(index: Index, names: tuple[str, ...]) -> tuple[Spot, ...]:
    """The named tensors that are there, and one of each file that has none of them."""
    kept = [index.tensors[n] for n in names if n in index.tensors]
    found = [_spot(info.name, info, index) for info in kept]
    files = {info.file for info in kept}
    rest = sorted(
        (i for i in _floats(index) if i.file not in files), key=lambda i: (i.nbytes, i.name)
    )
    for info in rest:
        if info.file not in files:
            files.add(info.file)
            found.append(_spot(UNCOVERED, info, index))
    return tuple(found)


def _spot(key: str, info: TensorInfo, index: Index) -> Spot:
    def take(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"weight": tensors[info.name]}

    site = json.dumps([info.name, info.file, index.revision])
    return Spot(key, Place(site=site), (info.name,), take)


def _floats(index: Index) -> list[TensorInfo]:
    return [i for i in index.tensors.values() if i.dtype in _FLOATS and i.nbytes]


def _lot(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _hash(tensor: Tensor) -> int:
    """48 bits: whole numbers up to 2**53 are exact in a record."""
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().data
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big")


def _projected(tensor: Tensor) -> tuple[Float64[Tensor, " buckets"], float, int]:
    """Sketch, sum of squares, and number of elements that are not finite."""
    sketch, squares, bad = torch.zeros(BUCKETS, dtype=torch.float64), 0.0, 0
    turns = torch.Generator().manual_seed(1)
    signs = _signs(torch.Generator().manual_seed(0), _LENGTH, BUCKETS)
    for blocks in _blocks(tensor):
        bad += blocks.numel() - int(blocks.isfinite().sum())
        # Each block turns at random, else differences that repeat in blocks would add up.
        turned = (blocks * signs).sum(1).double() * _signs(turns, len(blocks), BUCKETS)
        sketch += turned.sum(0)
        squares += float((blocks * blocks).sum(1).double().sum())
    return sketch, squares, bad


def _blocks(tensor: Tensor) -> Iterator[Float[Tensor, "blocks length buckets"]]:
    flat = tensor.reshape(-1)
    step = _GROUP * BUCKETS * _LENGTH
    for at in range(0, flat.numel(), step):
        part = flat[at : at + step].float()
        short = -part.numel() % (BUCKETS * _LENGTH)
        if short:
            part = torch.nn.functional.pad(part, (0, short))
        yield part.view(-1, _LENGTH, BUCKETS)


def _signs(generator: torch.Generator, *shape: int) -> Float[Tensor, "rows cols"]:
    return torch.randint(2, shape, generator=generator).mul_(2).sub_(1).float()

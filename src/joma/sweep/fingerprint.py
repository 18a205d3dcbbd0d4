"""Fingerprints of stored tensors: enough to tell copies, strangers and damage, in a few numbers.

Per tensor: a hash of its bytes, its norm, how many elements are not finite, dtype and shape, and a
sketch, a random projection to 32 numbers. Distances between sketches are unbiased estimates of
distances between tensors, so that a trajectory can be followed without keeping a weight.
"""

import hashlib
import json
import math
from collections.abc import Mapping
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
_ROWS, _WIDTH = 64, 1024  # of a block: 256 kB of float32 stay in the cache
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
    found = hashlib.sha1(data, usedforsecurity=False)  # twice as fast as blake2b
    return int.from_bytes(found.digest()[:6], "big")


def _projected(tensor: Tensor) -> tuple[Float64[Tensor, " buckets"], float, int]:
    """Sketch, sum of squares, and number of elements that are not finite.

    Rows of 1024 elements are added up with random signs, which is one product with a vector; what
    comes out is folded, with random signs again. Half a nanosecond for an element.
    """
    chance = torch.Generator().manual_seed(0)
    folded, squares = torch.zeros(_WIDTH, dtype=torch.float64), 0.0
    flat = tensor.reshape(-1)
    for at in range(0, flat.numel(), _ROWS * _WIDTH):
        rows = _rows(flat[at : at + _ROWS * _WIDTH])
        folded += (_signs(chance, len(rows)) @ rows).double()
        squares += float(torch.linalg.vecdot(rows, rows).double().sum())
    bad = 0 if math.isfinite(squares) else int((~flat.isfinite()).sum())
    turned = folded * _signs(torch.Generator().manual_seed(1), _WIDTH)
    return turned.view(-1, BUCKETS).sum(0), squares, bad


def _rows(part: Float[Tensor, " elements"]) -> Float[Tensor, "rows width"]:
    short = -part.numel() % _WIDTH
    part = part.float()
    return (torch.nn.functional.pad(part, (0, short)) if short else part).view(-1, _WIDTH)


def _signs(generator: torch.Generator, count: int) -> Float[Tensor, " count"]:
    return torch.randint(2, (count,), generator=generator).mul_(2).sub_(1).float()

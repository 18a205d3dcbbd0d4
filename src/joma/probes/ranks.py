"""Adding up what the ranks of a distributed run have seen."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from joma.probes.base import Place, Sums
from joma.probes.sums import MAX, all_reduce

Spot: TypeAlias = tuple[int, Place]
"""Which probe, where."""

Layout: TypeAlias = dict[Spot, dict[str, tuple[int, ...]]]
"""Shape of every entry of the sums at every spot."""


def layout_of(sums: Mapping[Spot, Sums]) -> Layout:
    """The shapes of what one rank has seen."""
    return {spot: {n: tuple(t.shape) for n, t in held.items()} for spot, held in sums.items()}


def agreed(layout: Layout, group: Any = None) -> Layout:
    """The spots that any rank has seen, the same on every rank. A collective; needed once.

    A rank may have had no batch, and no token of it may have met some expert.
    """
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, layout, group=group)
    union: Layout = {}
    for one in everyone:
        union |= one
    return dict(sorted(union.items(), key=lambda item: order(item[0])))


def added_up(
    sums: Mapping[Spot, Sums], layout: Layout, device: torch.device, group: Any = None
) -> dict[Spot, dict[str, Tensor]]:
    """The sums of all ranks, on every rank, by one all-reduce (one more for maxima, if any)."""
    flat: dict[str, Tensor] = {}
    keys: dict[str, tuple[Spot, str]] = {}
    for number, (spot, entries) in enumerate(layout.items()):
        for name, shape in entries.items():
            # Maxima must keep their mark in front: it says how they are combined.
            key = f"{MAX if name.startswith(MAX) else ''}{number:06d}:{name}"
            keys[key] = (spot, name)
            held = sums.get(spot)
            flat[key] = _nothing(name, shape, device) if held is None else held[name].to(device)
    whole: dict[Spot, dict[str, Tensor]] = {}
    for key, tensor in all_reduce(flat, group).items():
        spot, name = keys[key]
        whole.setdefault(spot, {})[name] = tensor
    return whole


def _nothing(name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    fill = -torch.inf if name.startswith(MAX) else 0.0
    return torch.full(shape, fill, dtype=torch.float64, device=device)


def order(spot: Spot) -> tuple[int, int, str, int]:
    """Probe by probe, from the input upwards."""
    probe, place = spot
    layer = -1 if place.layer is None else place.layer
    return probe, layer, place.site or "", -1 if place.expert is None else place.expert

"""What each weight probe is shown of a stored checkpoint: by name and shape, without a model."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from joma._core.errors import JomaError
from joma.architectures.base import (
    HEADS,
    Anatomy,
    Located,
    LocatedAttention,
    find,
    locate,
    refuse_codes,
    rotary_pairs,
    split_heads,
    turned_width,
)
from joma.probes.base import Need, Place
from joma.probes.weights import place_of
from joma.sources.base import Index

Tensors: TypeAlias = Mapping[str, Tensor]
Taken: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Spot:
    """One place of a checkpoint: which tensors to read for it, and how a probe is shown them."""

    key: str
    """The same at every revision."""
    place: Place
    names: tuple[str, ...]
    take: Callable[[Tensors], Taken]


def spots(need: Need, index: Index, config: Mapping[str, Any]) -> tuple[Spot, ...]:
    """Every place of a need in a checkpoint, from the input upwards.

    Raises:
        JomaError: The model is of no known family, is quantised, or has no such place.
    """
    shows: dict[Need, Callable[[Anatomy, Mapping[str, Any]], Iterator[Spot]]] = {
        Need.MLP_IN: _lower,
        Need.MLP_OUT: _upper,
        Need.MLP_UNITS: _units,
        Need.HEADS: _heads,
        Need.EMBEDDING: _embedding,
    }
    if need not in shows:
        raise JomaError(f"A checkpoint has no {need.value}: only a model in training does.")
    anatomy = _anatomy(tuple(index.shapes.items()), str(config.get("model_type", "")))
    found = tuple(shows[need](anatomy, config))
    if not found:
        raise JomaError(f"Revision {index.revision!r} has no {need.value} that its family names.")
    for name in {name for spot in found for name in spot.names}:
        refuse_codes(name, index.tensors[name].dtype)
    return found


@functools.lru_cache(maxsize=16)  # revisions of a run have the same names and shapes
def _anatomy(shapes: tuple[tuple[str, tuple[int, ...]], ...], model_type: str) -> Anatomy:
    return locate(find(dict(shapes), [model_type])[1], dict(shapes))


def _lower(anatomy: Anatomy, _: Mapping[str, Any]) -> Iterator[Spot]:
    return (_matrix(matrix) for mlp in anatomy.mlps for matrix in mlp.lower)


def _upper(anatomy: Anatomy, _: Mapping[str, Any]) -> Iterator[Spot]:
    return (_matrix(mlp.upper) for mlp in anatomy.mlps)


def _embedding(anatomy: Anatomy, _: Mapping[str, Any]) -> Iterator[Spot]:
    if anatomy.embedding is not None:
        spot = _matrix(anatomy.embedding)
        yield Spot(spot.key, Place(), spot.names, spot.take)


def _units(anatomy: Anatomy, _: Mapping[str, Any]) -> Iterator[Spot]:
    for mlp in anatomy.mlps:
        *gates, lower = mlp.lower
        parts = {"in": lower, "out": mlp.upper} | ({"gate": gates[0]} if gates else {})
        names = [matrix.name for matrix in parts.values()]
        if lower.bias is not None:
            names.append(lower.bias)

        def take(
            tensors: Tensors, parts: Mapping[str, Located] = parts, lower: Located = lower
        ) -> Taken:
            taken = {role: m.take(tensors[m.name]) for role, m in parts.items()}
            if lower.bias is not None:
                taken["in_bias"] = lower.take_bias(tensors[lower.bias])
            return taken

        place = place_of(mlp.upper)
        yield Spot(_key(place), place, tuple(dict.fromkeys(names)), take)


def _heads(anatomy: Anatomy, config: Mapping[str, Any]) -> Iterator[Spot]:
    count = next((int(config[name]) for name in HEADS if name in config), None)
    if count is None:
        raise JomaError(
            f"The number of heads is not known: config.json has none of {', '.join(HEADS)}."
        )
    for attention in anatomy.attentions:

        def take(
            tensors: Tensors, attention: LocatedAttention = attention, count: int = count
        ) -> Taken:
            heads: Taken = split_heads(attention, tensors, count)
            pairs = _rotary(attention, config, heads["query"].shape[1])
            return heads if pairs is None else heads | {"rotary": pairs}

        place = Place(attention.layer, attention.site)
        yield Spot(_key(place), place, tuple(dict.fromkeys(attention.tensors.values())), take)


def _rotary(attention: LocatedAttention, config: Mapping[str, Any], width: int) -> Tensor | None:
    """The coordinates that positions turn together; `None` if the config does not settle it."""
    if config.get("clip_qkv") or config.get("no_rope_layers"):
        return None
    pairs = rotary_pairs(attention.rotary, turned_width(config, width))
    return None if pairs is None else torch.tensor(pairs, dtype=torch.int64).view(-1, 2)


def _matrix(located: Located) -> Spot:
    def take(tensors: Tensors) -> Taken:
        return {"weight": located.take(tensors[located.name])}

    place = place_of(located)
    return Spot(_key(place), place, (located.name,), take)


def _key(place: Place) -> str:
    return "/".join("" if x is None else str(x) for x in (place.layer, place.site, place.expert))

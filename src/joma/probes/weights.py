"""What each weight probe is shown: the tensors of one place, in one orientation."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.architectures.base import (
    Anatomy,
    Located,
    LocatedAttention,
    LocatedMlp,
    rotary_pairs,
    split_heads,
    turned_width,
)
from joma.probes import live
from joma.probes.base import Need, Place

Shown: TypeAlias = Iterator[tuple[Place, Mapping[str, Tensor]]]


def place_of(matrix: Located) -> Place:
    """Where a matrix stands."""
    return Place(matrix.layer, matrix.site, matrix.expert)


class Weights:
    """The located tensors of one live model, read at the moment they are asked for."""

    def __init__(self, model: nn.Module, anatomy: Anatomy):
        """`anatomy` names tensors of `model` as `live.tensors` does."""
        self._model = model
        self._anatomy = anatomy
        self._tensors = live.tensors(model)

    def shown(self, need: Need) -> Shown:
        """Each place of a need with its tensors, from the input upwards."""
        shows: dict[Need, Callable[[], Shown]] = {
            Need.MLP_IN: self._lower,
            Need.MLP_IN_GRADIENT: self._lower_gradients,
            Need.MLP_OUT: self._upper,
            Need.MLP_UNITS: self._units,
            Need.HEADS: self._heads,
            Need.EMBEDDING: self._embedding,
        }
        return shows[need]()

    def matrix(self, located: Located) -> Tensor:
        """One matrix as (out, in)."""
        taken: Tensor = located.take(self._tensors[located.name].value(located.name))
        return taken

    def bias(self, located: Located) -> Tensor | None:
        """Its bias, if it has one."""
        if located.bias is None:
            return None
        taken: Tensor = located.take_bias(self._tensors[located.bias].value(located.bias))
        return taken

    def _lower(self) -> Shown:
        for mlp in self._mlps():
            for matrix in mlp.lower:
                yield place_of(matrix), {"weight": self.matrix(matrix)}

    def _lower_gradients(self) -> Shown:
        for mlp in self._mlps():
            for matrix in mlp.lower:
                gradient = self._tensors[matrix.name].gradient()
                if gradient is not None:
                    yield place_of(matrix), {"weight": matrix.take(gradient)}

    def _upper(self) -> Shown:
        for mlp in self._mlps():
            yield place_of(mlp.upper), {"weight": self.matrix(mlp.upper)}

    def _units(self) -> Shown:
        """Of a gated MLP, `in` is up: units are linear in up and out, whatever the gate does."""
        for mlp in self._mlps():
            *gates, lower = mlp.lower
            tensors = {"in": self.matrix(lower), "out": self.matrix(mlp.upper)}
            bias = self.bias(lower)
            tensors |= {} if bias is None else {"in_bias": bias}
            if gates:
                tensors["gate"] = self.matrix(gates[0])
            yield place_of(mlp.upper), tensors

    def _heads(self) -> Shown:
        modules = live.modules(self._model)
        for attention in self._anatomy.attentions:
            module = modules.get(attention.module)
            tensors = {n: self._tensors[n].value(n) for n in attention.tensors.values()}
            heads = split_heads(attention, tensors, self._count(attention, module))
            pairs = self._rotary(attention, module, heads["query"].shape[1])
            if pairs is not None:
                heads["rotary"] = pairs.to(heads["query"].device)
            yield Place(attention.layer, attention.site), heads

    def _count(self, attention: LocatedAttention, module: nn.Module | None) -> int:
        """Query heads of one attention."""
        count = live.head_count(self._model, module)
        if count is None:
            raise JomaError(
                f"The number of heads of {attention.module} is not known: neither it nor a "
                "configuration has num_attention_heads, n_head, num_heads or n_heads."
            )
        return count

    def _rotary(
        self, attention: LocatedAttention, module: nn.Module | None, width: int
    ) -> Tensor | None:
        """The coordinates that positions turn together, (pairs, 2); None if it is not known."""
        config = getattr(module, "config", None) or next(iter(live.configs(self._model)), None)
        settings = {} if config is None else vars(config)
        if settings.get("clip_qkv"):
            return None
        turned = turned_width(settings, width) if getattr(module, "use_rope", True) else 0
        pairs = rotary_pairs(attention.rotary, turned)
        return None if pairs is None else torch.tensor(pairs, dtype=torch.int64).view(-1, 2)

    def _embedding(self) -> Shown:
        embedding = self._anatomy.embedding
        if embedding is None:
            raise JomaError("This model has no token embedding that its family names.")
        yield Place(), {"weight": self.matrix(embedding)}

    def _mlps(self) -> tuple[LocatedMlp, ...]:
        if not self._anatomy.mlps:
            raise JomaError("No MLP of this model was located, so its matrices cannot be shown.")
        return self._anatomy.mlps

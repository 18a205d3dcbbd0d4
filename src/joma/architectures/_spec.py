"""The words in which a family file speaks. Names and shapes only; no tensors are touched here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from joma._core.errors import JomaError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Tensor name -> shape, as a checkpoint header or a live model gives it."""

Part: TypeAlias = Literal["first half", "second half", "even", "odd"]
"""Which outputs of a fused tensor."""

HeadOrder: TypeAlias = Literal["separate", "blocks", "groups"]
"""How queries, keys and values lie in their tensors: one tensor each; one tensor with all queries,
then all keys, then all values; or one that repeats (queries, key, value) per key head."""

Rotary: TypeAlias = Literal["none", "halves", "neighbours", "unknown"]
"""Which coordinates of a head turn together: `i` and `i + n/2`, or `2i` and `2i + 1`."""


class UnknownArchitectureError(JomaError, LookupError):
    """No family fits the tensors of a model. Says what was seen and how to add a family."""


class QuantisedWeightsError(JomaError, ValueError):
    """The weights are stored as codes, not as numbers."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One matrix. Its bias, if there is one, has the same name with `bias` for `weight`."""

    name: str
    """`layers.{layer}.mlp.up_proj.weight`; `{layer}` and `{expert}` stand for numbers."""
    role: str | None = None
    """`mlp.gate`, `mlp.up`; absent where a block has only one."""
    transposed: bool = False
    """Stored (in, out), as the Conv1D of GPT-2 does."""
    part: Part | None = None
    """Which outputs are its own, where gate and up share one tensor."""
    stacked: bool = False
    """The first axis of the tensor is the expert."""


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """One layout of an MLP: a lower matrix, or gate and up, and the upper matrix."""

    lower: tuple[Matrix, ...]
    upper: Matrix
    tower: str | None = None
    """`encoder` or `decoder`, if a model has both."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention module and the tensors of its heads."""

    module: str
    """The module whose forward computes the softmax: `layers.{layer}.self_attn`."""
    query: str | None = None
    """Absent, with the next three, if the order of heads inside the tensor is not known."""
    key: str | None = None
    value: str | None = None
    output: str | None = None
    order: HeadOrder = "separate"
    transposed: bool = False
    site: str | None = None
    """`encoder.self`, `decoder.cross`; absent where a block has only one."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model family. Of the layouts it lists, those whose tensors are there are used."""

    model_types: tuple[str, ...]
    """`config.model_type` of the models it serves."""
    embedding: str | None
    """Token embedding, (vocabulary, embed); None for images."""
    mlps: tuple[Mlp, ...]
    attentions: tuple[Attention, ...]
    rotary: Rotary = "none"
    """How positions turn queries and keys before they meet."""
    note: str = ""
    """What a user should know, in one sentence."""


@dataclass(frozen=True, slots=True)
class Located:
    """One matrix of one model: which tensor, and which part of it."""

    name: str
    layer: int | None = None
    site: str | None = None
    expert: int | None = None
    outputs: slice | None = None
    """Which outputs of the tensor are its own; all if absent."""
    transposed: bool = False
    stacked: bool = False
    bias: str | None = None
    """Name of the bias, if there is one."""

    def take(self, tensor: Any) -> Any:
        """The matrix as (out, in): a view of the tensor called `name`."""
        tensor = tensor[self.expert] if self.stacked else tensor
        tensor = tensor.T if self.transposed else tensor
        return tensor if self.outputs is None else tensor[self.outputs]

    def take_bias(self, tensor: Any) -> Any:
        """The part of the tensor called `bias` that belongs to this matrix."""
        tensor = tensor[self.expert] if self.stacked else tensor
        return tensor if self.outputs is None else tensor[self.outputs]


@dataclass(frozen=True, slots=True)
class LocatedMlp:
    """One MLP of one model, or one expert of it."""

    lower: tuple[Located, ...]
    upper: Located
    site: str | None = None
    """The tower, if a model has several."""


@dataclass(frozen=True, slots=True)
class LocatedAttention:
    """One attention of one model."""

    module: str
    layer: int
    site: str | None
    tensors: Mapping[str, str]
    """`query`, `key`, `value`, `output` and their `_bias` -> tensor names; empty if not known."""
    order: HeadOrder = "separate"
    transposed: bool = False
    rotary: Rotary = "unknown"
    """`unknown` also where queries and keys are normalised after they turned."""


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Everything of a family that one model has, from the input upwards."""

    mlps: tuple[LocatedMlp, ...]
    attentions: tuple[LocatedAttention, ...]
    embedding: Located | None

"""Which family a model is of, and where its tensors are. Start here to add a family.

A family is a file that defines `ARCHITECTURE`, an `Architecture` of `Mlp` and `Attention`
patterns. `find` chooses the family, `locate` names the tensors of one model.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from joma.architectures import registry
from joma.architectures._locate import locate as locate, split_heads as split_heads
from joma.architectures._rotary import rotary_pairs as rotary_pairs, turned_width as turned_width
from joma.architectures._spec import (
    Anatomy as Anatomy,
    Architecture as Architecture,
    Attention as Attention,
    Located as Located,
    LocatedAttention as LocatedAttention,
    LocatedMlp as LocatedMlp,
    Matrix as Matrix,
    Mlp as Mlp,
    QuantisedWeightsError as QuantisedWeightsError,
    Shapes as Shapes,
    UnknownArchitectureError as UnknownArchitectureError,
)
from joma.architectures._structure import structure

HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
"""Names under which configurations keep the number of query heads."""

_CODES = re.compile(r"\.(qweight|qzeros|weight_packed|weight_scale(_inv)?|absmax|SCB|quant_map)$")
_NUMBERS = ("float16", "bfloat16", "float32", "float64", "f16", "bf16", "f32", "f64")


def find(shapes: Shapes, model_types: Iterable[str] = ()) -> tuple[str, Architecture]:
    """Name of the family, and the family, of a model with these tensors.

    A family that serves one of the `model_types` comes first, then any family whose names fit,
    then what the shapes alone tell (called `"structure"`).

    Raises:
        UnknownArchitectureError: Nothing fits; says what was seen.
        QuantisedWeightsError: The tensors hold codes of quantised weights.
    """
    wanted = set(model_types)
    families = _families()
    claimed = {n: a for n, a in families.items() if wanted & set(a.model_types)}
    for candidates in (claimed, families):
        scores = {name: _explained(a, shapes) for name, a in candidates.items()}
        best = max(scores, key=lambda name: scores[name], default=None)
        if best is not None and scores[best]:
            # Names say nothing about what positions do; only the type of a model does.
            known = best in claimed
            return best, candidates[best] if known else replace(candidates[best], rotary="unknown")
    codes = sorted(name for name in shapes if _CODES.search(name))
    if codes:
        raise QuantisedWeightsError(
            f"These weights are quantised ({codes[0]} and {len(codes) - 1} more hold codes). Their "
            "matrices are not stored, so nothing is measured; load the model unquantised."
        )
    guess = structure(shapes)
    if guess is not None:
        return "structure", guess
    raise UnknownArchitectureError(_refusal(shapes, sorted(wanted)))


def refuse_codes(name: str, dtype: str) -> None:
    """Raise if a tensor of this dtype cannot be a matrix of numbers.

    Args:
        name: Of the tensor, for the message.
        dtype: As torch (`torch.uint8`) or a safetensors header (`U8`) spells it.
    """
    if dtype.removeprefix("torch.").lower() not in _NUMBERS:
        raise QuantisedWeightsError(
            f"{name} is stored as {dtype}: quantised weights are codes, not the matrix itself. "
            "Load the model in a floating-point type of 16 bits or more."
        )


@functools.cache  # looking for entry points of other packages takes a second
def _families() -> dict[str, Architecture]:
    return {name: registry.load(name) for name in registry.names()}


def _explained(architecture: Architecture, shapes: Shapes) -> int:
    """How many tensors a family names, 0 if a kind of them is missing altogether."""
    anatomy = locate(architecture, shapes)
    if not anatomy.mlps or not anatomy.attentions:
        return 0
    if architecture.embedding is not None and anatomy.embedding is None:
        return 0
    names = {m.name for mlp in anatomy.mlps for m in (*mlp.lower, mlp.upper)}
    return len(names) + sum(max(1, len(a.tensors)) for a in anatomy.attentions)


def _refusal(shapes: Shapes, model_types: list[str]) -> str:
    kinds = Counter(re.sub(r"\d+", "*", name) for name in shapes)
    example = {re.sub(r"\d+", "*", name): shape for name, shape in shapes.items()}
    seen = "; ".join(f"{n} {example[n]} x{c}" for n, c in kinds.most_common(12))
    called = f" of type {', '.join(model_types)}" if model_types else ""
    return (
        f"No family fits this model{called}: no block with an expanding matrix, and no attention "
        f"module, was recognised among {len(shapes)} tensors. Seen: {seen or 'nothing'}. "
        "To add a family, write src/joma/architectures/NAME.py as docs/how-to/add-a-family.md says."
    )

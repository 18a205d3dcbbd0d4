r"""The ladder from a language model to the model of Theorem 1, one hypothesis restored per rung.

Every rung is a `LanguageModel` of one layer with the hypotheses of all rungs before it. From the
rung of orthonormal embeddings on, words are the unit vectors of the axes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from joma.models.language import Block, CausalAttention, LanguageConfig, LanguageModel

LADDER = {
    "full": "language model",
    "sgd": "+ SGD instead of Adam",
    "no_norm": "+ no LayerNorm",
    "orthonormal": "+ fixed orthonormal embeddings",
    "values": "+ values are the embeddings",
    "no_residual": "+ query not among the keys",
    "free_logits": "+ free logits",
    "exp": "+ exp attention",
    "one_query": "+ one query",
}
"""Rungs in their order, with what each of them restores."""
RUNGS = tuple(LADDER)
FROZEN = RUNGS[:4]
"""Rungs with a twin whose MLP keeps its weights; above, v would not change at all."""


def twin(rung: str) -> str:
    """The arm that is like `rung`, with a frozen MLP."""
    return f"{rung}_frozen_mlp"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the models of all rungs; the width is the number of words, so that they fit."""

    vocab: int
    hidden: int
    normaliser: float = 18.0  # ours: keys that a query sees on average, of 35


class FreeAttention(nn.Module):
    """Logits that are parameters, a row per query word or one for all; words are unit vectors."""

    def __init__(self, shape: Shape, *, rows: int, kind: Literal["softmax", "exp"]) -> None:
        """All logits start at 0. Exp attention is divided by a constant."""
        super().__init__()
        self.kind = kind
        self.normaliser = shape.normaliser
        self.z = nn.Parameter(torch.zeros(rows, shape.vocab))

    def logits(
        self, tokens: Int[Tensor, "batch query"]
    ) -> Float[Tensor, "batch query {tokens.shape[1]}"]:
        """The logit of every key for every query, seen or not."""
        row = self.z[tokens if len(self.z) > 1 else torch.zeros_like(tokens)]
        keys = tokens[:, None].expand(-1, tokens.shape[1], -1)
        return row.gather(-1, keys)

    def forward(self, x: Float[Tensor, "batch query embed"]) -> Float[Tensor, "batch query embed"]:
        z = self.logits(x.argmax(-1))
        seen = causal(z.shape[-1])
        if self.kind == "softmax":
            return z.masked_fill(~seen, -torch.inf).softmax(-1) @ x
        return z.exp() * seen / self.normaliser @ x


def causal(length: int) -> Tensor:
    """True where a query sees a key."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def build(shape: Shape, arm: str, seed: int) -> LanguageModel:
    """The model of a rung, or of its twin; rungs of one seed start from the same numbers."""
    rung, restored = arm.removesuffix("_frozen_mlp"), restored_by(arm)
    orthonormal = "orthonormal" in restored
    config = LanguageConfig(
        vocab=shape.vocab,
        embed=shape.vocab,
        hidden=shape.hidden,
        dropout=0.0,
        mlp="full" if arm == rung else "frozen",
        norm="none" if "no_norm" in restored else "layer",
        residual="no_residual" not in restored,
        positions="none" if orthonormal else "sinusoidal",
        frozen=("embedding",) if orthonormal else (),
    )
    model = LanguageModel(config, seed)
    attention = attention_of(model)
    with torch.no_grad():
        if orthonormal:
            model.embedding.weight.copy_(torch.eye(shape.vocab) / shape.vocab**0.5)
        if "values" in restored:
            assert isinstance(attention, CausalAttention)
            for part in (attention.value, attention.output):
                part.weight.copy_(torch.eye(shape.vocab))
                part.requires_grad_(False)
    if "free_logits" in restored:
        model.blocks[0].attention = FreeAttention(
            shape,
            rows=1 if "one_query" in restored else shape.vocab,
            kind="exp" if "exp" in restored else "softmax",
        )
    return model


def restored_by(arm: str) -> frozenset[str]:
    """The rung of an arm and all below it."""
    rung = arm.removesuffix("_frozen_mlp")
    return frozenset(RUNGS[: RUNGS.index(rung) + 1])


def attention_of(model: LanguageModel) -> CausalAttention | FreeAttention:
    """The attention of layer 0."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    found: object = block.attention
    assert isinstance(found, CausalAttention | FreeAttention)
    return found

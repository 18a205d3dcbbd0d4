"""The model of Table 1, evaluated exactly and cheaply.

Nothing is approximated. Rows that repeat are given a share instead. Without positions all leading
pads have one representation, so one pad stands for all of them, as a key with the logarithm of
their number added to its score. And only the last position of the last block is ever read.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from joma.models.language import Block, CausalAttention, LanguageConfig, LanguageModel
from joma.models.objectives import cross_entropy

LAYERS, HIDDEN = 3, 400  # the authors': hidden is four times the 100 tokens


class Batch(NamedTuple):
    """What one update sees."""

    sequences: Int[Tensor, "samples context"]
    labels: Int[Tensor, " samples"]
    shares: Float[Tensor, " samples"]
    """Part of the batch that each row stands for."""


class Pass(NamedTuple):
    """What one evaluation of the model gives."""

    logits: Float[Tensor, "samples classes"]
    """Of the class, at the last position."""
    pooled: tuple[Float[Tensor, "samples hidden"], ...]
    """Hidden units of every block but the last, each at its largest over positions."""


def build(vocabulary: int, classes: int, embed: int, seed: int) -> LanguageModel:
    """An untrained model: no positions, no dropout, and a read-out of classes, not of tokens."""
    config = LanguageConfig(
        vocab=vocabulary,
        layers=LAYERS,
        embed=embed,
        hidden=HIDDEN,
        dropout=0.0,
        positions="none",
    )
    model = LanguageModel(config, seed)
    readout = nn.Linear(embed, classes, device="meta")  # draws nothing there
    readout.weight = nn.Parameter(model.readout.weight.detach()[:classes].clone())
    readout.bias = nn.Parameter(model.readout.bias.detach()[:classes].clone())
    model.readout = readout
    return model


def evaluate(model: LanguageModel, sequences: Int[Tensor, "samples context"], pad: int) -> Pass:
    """Logits at the last position and pooled units, for sequences padded on the left."""
    ids, bias = _trimmed(sequences, pad)
    x = math.sqrt(model.config.embed) * model.embedding(ids)
    *lower, last = (block for block in model.blocks if isinstance(block, Block))
    pooled = []
    for block in lower:
        x, hidden = _through(block, x, bias, x)
        pooled.append(hidden.amax(1))
    x, _ = _through(last, x, bias[-1:], x[:, -1:])
    return Pass(model.readout(x[:, -1]), tuple(pooled))


def train(
    model: LanguageModel,
    draw: Callable[[], Batch],
    pad: int,
    *,
    iterations: int,
    rate: float,
    decay: float,
    at: Iterable[int],
) -> Iterator[tuple[int, float]]:
    """Update `model` in place; stops at each iteration of `at` to be looked at, with its loss.

    Adam with the decay inside its gradient, as the authors' script has it. The loss is that of
    the batch that comes next, before it is used.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay, fused=True)
    wanted = {*at}
    for iteration in range(iterations + 1):
        batch = draw()
        logits = evaluate(model, batch.sequences, pad).logits
        loss = cross_entropy(logits, batch.labels, batch.shares)
        if iteration in wanted:
            yield iteration, float(loss.detach())
        if iteration < iterations:
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def _trimmed(
    sequences: Int[Tensor, "samples context"], pad: int
) -> tuple[Int[Tensor, "samples query"], Float[Tensor, "query query"]]:
    """Sequences without the pads that every row has, but one, and what to add to the scores."""
    columns = (sequences != pad).any(0).nonzero()
    first = int(columns[0]) if len(columns) else sequences.shape[1]
    start = max(first - 1, 0)
    ids = sequences[:, start:]
    bias = torch.full((ids.shape[1], ids.shape[1]), -torch.inf).triu(1)
    bias[:, 0] += math.log(start + 1)
    return ids, bias


def _through(
    block: Block,
    x: Float[Tensor, "samples key embed"],
    bias: Float[Tensor, "query key"],
    read: Float[Tensor, "samples query embed"],
) -> tuple[Float[Tensor, "samples query embed"], Float[Tensor, "samples query hidden"]]:
    """The positions `read` after a post-norm block over all of `x`, and their hidden units."""
    assert block.mlp is not None and block.mlp_norm is not None
    y = block.attention_norm(read + _mixed(block.attention, x, bias, read))
    hidden = block.mlp.phi(block.mlp.lower(y))
    return block.mlp_norm(y + block.mlp.upper(hidden)), hidden


def _mixed(attention: CausalAttention, x: Tensor, bias: Tensor, read: Tensor) -> Tensor:
    q, k, v = attention.query(read), attention.key(x), attention.value(x)
    mixed: Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    out: Tensor = attention.output(mixed)
    return out

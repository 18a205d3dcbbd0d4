r"""The looks of `saliency` at a language model: $\mathbb E[g h' x]$, weights and logits by token.

All queries together, as the lower MLP matrix sees them. `x` are frequencies in the text before the
query; `v` is the lower matrix on what attention passes on of a token's embedding, without
LayerNorm and positions; `z` is the mean logit of the token as a key.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from joma.data.text import Corpus, Window, batchify, window, window_count
from joma.experiments._language import BATCH, LENGTH, Windows
from joma.experiments._saliency import Look
from joma.metrics.saliency import prefix_frequencies, saliency, saliency_sums
from joma.models.language import Block, CausalAttention, LanguageModel, Mlp
from joma.probes.base import Sums

LEAST = 10  # occurrences of a token in the windows; rarer ones are left out


def training_windows(text: Corpus, count: int) -> Windows:
    """So many minibatches of an epoch, evenly spaced."""
    rows = batchify(text.train, BATCH)
    last = window_count(rows, LENGTH) - 2  # the last one may be short
    return tuple(window(rows, int(i), LENGTH) for i in np.linspace(0, last, count))


def frequent(windows: Windows) -> Int[Tensor, " tokens"]:
    """Tokens that occur at least `LEAST` times in the windows."""
    counts = torch.bincount(torch.cat([w.inputs.flatten() for w in windows]))
    return (counts >= LEAST).nonzero()[:, 0]


def look(
    model: LanguageModel,
    windows: Windows,
    tokens: Int[Tensor, " tokens"],
    rng: np.random.Generator,
) -> Look:
    """Its first layer, which must have one head; signals are shuffled within each minibatch."""
    block = model.blocks[0]
    assert isinstance(block, Block) and isinstance(block.mlp, Mlp)
    sums: dict[str, Tensor] = {}
    with _watched(block) as seen:
        for one in windows:
            for name, value in _batch(model, block, seen, one, tokens, rng).items():
                sums[name] = sums[name] + value if name in sums else value
    parts = {
        end: saliency({n: sums[n + end] for n in ("joint", "presence", "samples")})
        for end in ("", "_shuffled")
    }
    return Look(
        delta=parts[""].saliency[0].numpy(),
        shuffled=parts["_shuffled"].saliency[0].numpy(),
        frequency=parts[""].cooccurrence[0].numpy(),
        v=weights(model, tokens).numpy(),
        z=(sums["logit"] / sums["seen"])[tokens].numpy(),
        entropy=(sums["entropy"] / sums["rows"]).numpy(),
    )


@torch.no_grad()
def weights(model: LanguageModel, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens hidden"]:
    """Weight of each unit of the first MLP on each token, through values and output."""
    block = model.blocks[0]
    assert isinstance(block, Block) and isinstance(block.mlp, Mlp)
    passed = block.attention.output.weight @ block.attention.value.weight
    vectors = math.sqrt(model.config.embed) * model.embedding.weight[tokens]
    return (vectors @ passed.T @ block.mlp.lower.weight.T).double()


@contextmanager
def _watched(block: Block) -> Iterator[dict[str, Tensor]]:
    """Filled at each pass with what goes into attention and what the lower matrix puts out."""
    assert isinstance(block.mlp, Mlp)
    seen: dict[str, Tensor] = {}
    handles = [
        block.attention.register_forward_hook(lambda _, args, out: seen.update(inputs=args[0])),
        block.mlp.lower.register_forward_hook(lambda _, args, out: seen.update(units=out)),
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _batch(
    model: LanguageModel,
    block: Block,
    seen: dict[str, Tensor],
    one: Window,
    tokens: Tensor,
    rng: np.random.Generator,
) -> Sums:
    """What one minibatch adds to every mean."""
    out = model(one.inputs).flatten(0, 1)
    loss = F.cross_entropy(out, one.targets.flatten(), reduction="sum")
    (slope,) = torch.autograd.grad(loss, seen["units"])
    g = -slope[:, 1:].flatten(0, 1)
    x = prefix_frequencies(one.inputs, tokens).flatten(0, 1)
    every = torch.zeros(len(g), dtype=torch.int64)  # one query stands for all
    dealt = torch.from_numpy(rng.permuted(g.numpy(), axis=0))
    found = dict(saliency_sums(g, x, every, every[:1]))
    for name, value in saliency_sums(dealt, x, every, every[:1]).items():
        found[f"{name}_shuffled"] = value
    found |= _attention(block.attention, seen["inputs"], one.inputs, model.config.vocab)
    return found


@torch.no_grad()
def _attention(attention: CausalAttention, x: Tensor, ids: Tensor, vocab: int) -> Sums:
    """Sums by token of its logits as a key, each less the mean of its row; and of entropies."""
    scores = (attention.query(x) @ attention.key(x).mT / math.sqrt(x.shape[-1])).double()
    visible = torch.ones_like(scores[0], dtype=torch.bool).tril()
    mean = (scores * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)
    centred = ((scores - mean) * visible).sum(-2)  # over queries: [batch, key]
    count = visible.sum(-2).expand_as(centred).double()
    p = scores.masked_fill(~visible, -torch.inf).softmax(-1)

    def by_token(values: Tensor) -> Tensor:
        return torch.bincount(ids.flatten(), values.flatten(), minlength=vocab)

    return {
        "logit": by_token(centred),
        "seen": by_token(count),
        "entropy": torch.special.entr(p).sum(),
        "rows": torch.tensor(float(ids.numel())).double(),
    }

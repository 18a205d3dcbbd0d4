r"""What Theorem 1 speaks of, word by word, in a language model: logits and MLP weights.

Word l adds $b_l\, \Gamma W_O W_V u_l$ to the input of the MLP if it gets attention $b_l$ ($\Gamma$:
gain of the norm in between, $u_l$: embedding as scaled by the model), so node k has the weight
$v_{kl} = w_k^\top \Gamma W_O W_V u_l$ on it: the theorem's $v_{kl} = w_k^\top u_l$, extended.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import rankdata
from torch import Tensor

from joma._core.typing import Array
from joma.experiments._language import Windows
from joma.experiments._mechanism_model import FreeAttention, attention_of, causal
from joma.models.language import Block, CausalAttention, LanguageModel


@dataclass(frozen=True)
class Words:
    """Per word of the vocabulary. A word that was not among the keys has the logit `nan`."""

    logit: Float[Array, " tokens"]
    """Mean over the pairs of a query and this word as a key that it sees."""
    summed: Float[Array, " tokens"]
    """Sum over all words as queries, each once, positions left out: what queries that share an
    MLP conserve together (E25)."""
    energy: Float[Array, " tokens"]
    r"""$\frac12\sum_k v_{kl}^2$."""
    value: Float[Array, " tokens"]
    r"""Half the squared length of $\Gamma W_O W_V u_l$: the same without the MLP."""
    seen: Float[Array, " tokens"]
    """How often it occurs among the keys."""


@torch.no_grad()
def words(model: LanguageModel, windows: Windows) -> Words:
    """Every number of `Words`, of layer 0."""
    vocab = model.config.vocab
    total, pairs, seen = (torch.zeros(vocab, dtype=torch.float64) for _ in range(3))
    for tokens in (w.inputs for w in windows):
        visible = causal(tokens.shape[1])
        logits = scores(model, tokens).double().masked_fill(~visible, 0.0)
        total.index_add_(0, tokens.flatten(), logits.sum(1).flatten())
        queries = visible.sum(0).double().expand(len(tokens), -1)
        pairs.index_add_(0, tokens.flatten(), queries.flatten())
        seen += torch.bincount(tokens.flatten(), minlength=vocab)
    block = model.blocks[0]
    assert isinstance(block, Block) and block.mlp is not None
    values = _values(model, block).double()
    v = values @ block.mlp.lower.weight.T.double()
    energy, value = (0.5 * part.square().sum(1) for part in (v, values))
    summed = word_logits(model).double().sum(0)
    return Words(*(part.numpy() for part in (total / pairs, summed, energy, value, seen)))


def scores(
    model: LanguageModel, tokens: Int[Tensor, "batch query"]
) -> Float[Tensor, "batch query {tokens.shape[1]}"]:
    """Attention logits of layer 0 for all pairs of positions."""
    attention = attention_of(model)
    if isinstance(attention, FreeAttention):
        return attention.logits(tokens)
    x = model.config.embed**0.5 * model.embedding(tokens)
    if model.config.positions == "sinusoidal":
        x = x + model.positions[: tokens.shape[1]]
    return _projected(attention, x)


def word_logits(model: LanguageModel) -> Float[Tensor, "queries tokens"]:
    """The logit of every word as a key for every word as a query; one row if all share it."""
    attention = attention_of(model)
    if isinstance(attention, FreeAttention):
        return attention.z
    return _projected(attention, model.config.embed**0.5 * model.embedding.weight)


def _projected(attention: CausalAttention, x: Tensor) -> Tensor:
    out: Tensor = attention.query(x) @ attention.key(x).transpose(-1, -2) / x.shape[-1] ** 0.5
    return out


def _values(model: LanguageModel, block: Block) -> Float[Tensor, "tokens embed"]:
    """What each word adds to the input of the MLP under full attention, biases left out."""
    out: Tensor = model.config.embed**0.5 * model.embedding.weight
    attention = attention_of(model)
    if isinstance(attention, CausalAttention):
        out = out @ attention.value.weight.T @ attention.output.weight.T
    gain = getattr(block.attention_norm, "weight", None)
    return out * gain if isinstance(gain, Tensor) else out


def spearman(a: Float[Array, " tokens"], b: Float[Array, " tokens"]) -> float:
    """Rank correlation; `nan` if one of the two is constant."""
    return _correlation(rankdata(a), rankdata(b))


def partial_spearman(
    a: Float[Array, " tokens"], b: Float[Array, " tokens"], given: Float[Array, "tokens controls"]
) -> float:
    """Correlation of what is left of the ranks of both when those of the controls are fitted."""
    ranks = np.stack([rankdata(column) for column in given.T], 1)
    fit = np.column_stack([np.ones(len(a)), ranks])
    rest = [r - fit @ np.linalg.lstsq(fit, r, rcond=None)[0] for r in (rankdata(a), rankdata(b))]
    return _correlation(*rest)


def _correlation(a: Array, b: Array) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else float("nan")

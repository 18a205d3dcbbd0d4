"""Samples of HBLT(rho) as text: tokens that are on, in random order, then a question for one.

The last input asks for a token m, and is answered by m if it is on and by "off" if it is not. So
query and next token belong together, as Section 5 has them, and the tokens before the question
are those that Theorem 5 says occur together with m, or do not.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from joma.data import hblt
from joma.experiments._fig5_task import IGNORED, Look, Task
from joma.experiments._table1_data import codes
from joma.theory.hblt import ancestor_level


@dataclass(frozen=True, kw_only=True)
class Trees:
    """A tree of 32 tokens. Depth counts the levels of binary latents."""

    depth: int
    rho: float = 0.9  # as Theorem 5's example here
    classes: int = 6  # ours
    children: int = 2
    sure: float = 0.9  # ours: how surely a class decides each top latent

    @property
    def tops(self) -> int:
        """Top latents: 8 or 4, for 32 tokens either way."""
        return int(32 / self.children**self.depth)


def task(config: Trees, seed: int, samples: int, batch: int) -> Task:
    """One tree, a stream of batches, and the samples that are looked at."""
    generator = torch.Generator().manual_seed(seed)
    rows = codes(config.classes, config.tops, config.children, config.sure, generator)
    edges = (config.rho,) * config.depth
    tree = hblt.NoisyTree(edges, zero_given_class=rows, branching=config.children)
    tokens = tree.nodes(0)
    drawn = hblt.sample(tree, samples, generator)
    ids, _ = asked(drawn.leaves, generator)
    place = torch.randperm(tokens, generator=generator)
    table = ancestors(tokens, config)
    look = Look(
        tokens=ids,
        ancestor=_pairs(ids, table),
        shuffled=_pairs(ids, table[place][:, place]),
        latents=drawn.latents[1:],
        present=ids != tokens,
        whole_rows=True,
    )
    return Task(
        vocabulary=2 * tokens + 1,
        levels=tuple(range(1, config.depth + 2)),
        positions=False,
        look=look,
        batch=lambda: asked(hblt.sample(tree, batch, generator).leaves, generator),
    )


def ancestors(tokens: int, config: Trees) -> Int[Tensor, "tokens tokens"]:
    """Level of the common ancestor of two tokens; that of the root if no latent is above both."""
    found = [
        [min(ancestor_level(i, j, config.children), config.depth + 1) for j in range(tokens)]
        for i in range(tokens)
    ]
    return torch.tensor(found)


def asked(
    leaves: Bool[Tensor, "samples tokens"], generator: torch.Generator
) -> tuple[Int[Tensor, "samples context"], Int[Tensor, "samples context"]]:
    """Inputs and targets: tokens that are on but the one asked for, the question, then pads.

    With n tokens, n is the pad and the answer "off", and n + 1 + m asks for m. Where nothing is
    asked the target is `IGNORED`.
    """
    samples, tokens = leaves.shape
    every = torch.arange(samples)
    m = torch.randint(tokens, (samples,), generator=generator)
    context = leaves.clone()
    context[every, m] = False
    order = torch.rand(leaves.shape, generator=generator).masked_fill(~context, 2.0).argsort(1)
    ids = order.masked_fill(~context.gather(1, order), tokens)
    ids = F.pad(ids, (0, 1), value=tokens)
    end = context.sum(1)
    ids[every, end] = tokens + 1 + m
    targets = torch.full_like(ids, IGNORED)
    targets[every, end] = m.where(leaves[every, m], tokens)
    length = int(end.max()) + 1
    return ids[:, :length], targets[:, :length]


def _pairs(
    ids: Int[Tensor, "samples context"], table: Int[Tensor, "tokens tokens"]
) -> Int[Tensor, "samples context context"]:
    """Level of the common ancestor of the token asked for and each that is on; -1 elsewhere."""
    tokens = len(table)
    question, on = ids > tokens, ids < tokens
    leaf = torch.where(question, ids - tokens - 1, ids).clamp(max=tokens - 1)
    found = table[leaf[:, :, None], leaf[:, None, :]]
    return found.where(question[:, :, None] & on[:, None, :], -1)

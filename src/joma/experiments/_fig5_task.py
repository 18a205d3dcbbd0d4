"""What Section 5's question is asked of: text with a known hierarchy, and the model that reads it.

One shape for sampled trees and for source code.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.experiments._fig5_probes import AncestorProbe, LatentProbe
from joma.models.language import Block, LanguageConfig, LanguageModel
from joma.probes.observe import observe
from joma.records.schema import Reading

IGNORED = -100
"""Target of a position that predicts nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """Sequences to look at, and all that is known of their hierarchy."""

    tokens: Int[Tensor, "samples context"]
    ancestor: Int[Tensor, "samples context context"]
    """Level of the common ancestor of query and key; -1 where a pair does not count."""
    shuffled: Int[Tensor, "samples context context"]
    """The same after tokens were given other places in the tree."""
    latents: tuple[Bool[Tensor, "rows _"], ...]
    """From the level next to the tokens up."""
    present: Bool[Tensor, "samples context"]
    """False at pads."""
    whole_rows: bool
    """Whether latents belong to sequences; else to each of their tokens."""

    def pool(self, units: Float[Tensor, "samples context hidden"]) -> Float[Tensor, "rows hidden"]:
        """Units of a sequence at their largest over positions (Table 1), or of each token."""
        if not self.whole_rows:
            return units.flatten(0, 1)
        return units.masked_fill(~self.present[..., None], -torch.inf).amax(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A hierarchy to learn from text."""

    vocabulary: int
    levels: tuple[int, ...]
    """Of common ancestors, the closest first."""
    positions: bool
    look: Look
    batch: Callable[[], tuple[Int[Tensor, "batch context"], Int[Tensor, "batch context"]]]
    """Fresh inputs and targets each time; a target may be `IGNORED`."""


def build(task: Task, *, layers: int, embed: int, activation: str, seed: int) -> LanguageModel:
    """An untrained model without dropout; hidden is four times the width."""
    config = LanguageConfig(
        vocab=task.vocabulary,
        layers=layers,
        embed=embed,
        hidden=4 * embed,
        dropout=0.0,
        activation=activation,
        positions="sinusoidal" if task.positions else "none",
    )
    return LanguageModel(config, seed)


def train(
    model: LanguageModel, task: Task, *, steps: int, rate: float, at: tuple[int, ...]
) -> Iterator[tuple[int, float]]:
    """Update `model` in place by Adam; stops at each step of `at`, with the next batch's loss."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    for step in range(steps + 1):
        inputs, targets = task.batch()
        logits = model(inputs).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
        if step in at:
            yield step, float(loss.detach())
        if step < steps:
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def readings(model: LanguageModel, task: Task) -> list[Reading]:
    """Attention by ancestor, by ancestor in the shuffled tree, and latents, of every layer."""
    look = task.look
    first = model.blocks[0]
    assert isinstance(first, Block) and first.mlp is not None
    probes = [
        AncestorProbe(ancestor=look.ancestor, levels=task.levels),
        AncestorProbe(ancestor=look.shuffled, levels=task.levels, metric="shuffled_lift"),
        LatentProbe(latents=look.latents, pool=look.pool, phi=first.mlp.phi),
    ]
    with torch.no_grad(), observe(model, probes, check=False) as seen:
        model(look.tokens)
    return list(seen.readings())

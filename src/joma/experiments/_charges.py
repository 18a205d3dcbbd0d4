"""A small softmax Transformer, trained to learn a fixed batch by heart, and its charges."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from joma.metrics.charge import PROBE
from joma.models.language import LanguageConfig, LanguageModel
from joma.probes.observe import observe

METRICS = ("qk_charge_drift", "vo_charge_drift")


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """The model of Figures 6 and 8, much smaller and without dropout; in float64."""

    optimiser: Literal["sgd", "adam"]
    rate: float
    steps: int
    vocab: int = 30
    embed: int = 16
    length: int = 12
    batch: int = 8


def drifts(config: Transformer, seed: int) -> Iterator[tuple[str, float]]:
    """Each charge's drift from the start, relative to its weights, of the head that drifts most."""
    shape = LanguageConfig(
        vocab=config.vocab,
        layers=2,
        embed=config.embed,
        hidden=2 * config.embed,
        num_heads=2,
        dropout=0.0,
        same_start=False,
        max_length=config.length,
    )
    model = LanguageModel(shape, seed).double()
    text = torch.randint(
        config.vocab,
        (config.batch, config.length + 1),
        generator=torch.Generator().manual_seed(seed),
    )
    optimiser = _optimiser(config, model)
    seen = observe(model, [PROBE], check=False)
    list(seen.measured())  # the reference
    for _ in range(config.steps):
        optimiser.zero_grad()
        logits = model(text[:, :-1])
        torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()))
        optimiser.step()
    readings = list(seen.measured())
    for metric in METRICS:
        yield metric, max(r.value for r in readings if r.metric == metric)


def _optimiser(config: Transformer, model: LanguageModel) -> torch.optim.Optimizer:
    if config.optimiser == "sgd":
        return torch.optim.SGD(model.parameters(), lr=config.rate)
    return torch.optim.Adam(model.parameters(), lr=config.rate)

"""Small language models on WikiText-2, trained as the authors did and measured all along.

Facts of the authors' runs: batch 20, 35 tokens, gradients clipped at .5, Adam made anew at each
epoch (so its moments start from zero every 2,929 minibatches). The validation loss and all
statistics of attention are taken on the same windows, every `SKIP`-th of the validation text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.data import wikitext
from joma.data.text import Corpus, Window, batchify, window, window_count
from joma.experiments._maps import MeanMapProbe
from joma.experiments._training import Measurement, train
from joma.metrics import entropy, logits, rank
from joma.models.language import LanguageConfig, LanguageModel
from joma.probes.base import AbstractStreamProbe, AbstractWeightProbe
from joma.records.store import Store

BATCH, LENGTH, CLIP = 20, 35, 0.5  # the authors'
SKIP = 8  # ours: 39 windows, 27,300 tokens; the whole text would cost a minute each time
ENTROPY, LOGIT, RANK, MAP = "attention_entropy", "max_attention_logit", "stable_rank", "mean_map"

Windows: TypeAlias = tuple[Window, ...]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How one language model is trained."""

    model: LanguageConfig
    learning_rate: float
    steps: int
    optimiser: Literal["adam", "sgd"] = "adam"
    fresh_each_epoch: bool = True  # the authors' script makes a new Adam at each epoch
    every: int = 250  # steps between measurements, after the early ones
    early: tuple[int, ...] = (0, 10, 25, 50, 100, 150, 200)  # the authors' first is at 1000
    maps: tuple[int, ...] = ()  # steps whose mean attention map is kept
    skip: int = SKIP  # measured on every so-many-th validation window


def at(setting: Setting) -> tuple[int, ...]:
    """The steps that are measured."""
    regular = range(setting.every, setting.steps + 1, setting.every)
    return tuple(sorted({*setting.early, *setting.maps, *regular}))


@lru_cache(maxsize=1)
def corpus(vocab: int) -> Corpus:
    """WikiText-2 with its most frequent words, the rest `<unk>`. Kept: reading takes seconds."""
    return wikitext.load("wikitext-2", size=vocab)


def held_out(text: Corpus, skip: int = SKIP) -> Windows:
    """The validation windows that are measured on, all of full length."""
    rows = batchify(text.valid, BATCH)
    full = (rows.shape[1] - 1) // LENGTH
    return tuple(window(rows, i, LENGTH) for i in range(0, full, skip))


def loss(model: nn.Module, windows: Windows) -> Tensor:
    """Cross-entropy per token, in nats."""
    parts = [
        F.cross_entropy(model(w.inputs).flatten(0, 1), w.targets.flatten(), reduction="sum")
        for w in windows
    ]
    return torch.stack(parts).sum() / sum(w.targets.numel() for w in windows)


def trained(setting: Setting, arm: str, seed: int, folder: Path) -> tuple[LanguageModel, pa.Table]:
    """The model after its last step, and its records; what is on disk already is not redone."""
    text = corpus(setting.model.vocab)
    rows = batchify(text.train, BATCH)
    epoch = window_count(rows, LENGTH)
    model = LanguageModel(setting.model, seed)
    optimiser = _optimiser(setting, model)

    def fresh(step: int) -> None:
        if setting.fresh_each_epoch and step % epoch == 0:
            optimiser.state.clear()

    run = f"{arm}/seed{seed}"
    store = Store(folder / arm / "records")
    train(
        model,
        loss,
        lambda step: (window(rows, step % epoch, LENGTH),),
        optimiser,
        steps=setting.steps,
        seed=seed,
        run=run,
        store=store,
        folder=folder / arm / "checkpoints",
        measure=Measurement(
            at=at(setting),
            batch=held_out(text, setting.skip),
            probes=tuple(_probes(setting)),
            tokens=BATCH * LENGTH,
            sequence_length=LENGTH,
        ),
        save_every=500,
        clip=CLIP,
        before=fresh,
    )
    return model, _kept(store.read(run=[run]), setting.maps)


def _optimiser(setting: Setting, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if setting.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=setting.learning_rate)
    return torch.optim.Adam(parameters, lr=setting.learning_rate, fused=True)


def _probes(setting: Setting) -> Iterator[AbstractStreamProbe | AbstractWeightProbe]:
    yield entropy.PROBE
    yield logits.PROBE
    if setting.model.mlp != "none":
        yield rank.PROBE
    if setting.maps:
        yield MeanMapProbe()


def _kept(table: pa.Table, maps: Iterable[int]) -> pa.Table:
    """Without the maps of steps that are not asked for."""
    wanted = {float(step) for step in maps}
    rows = zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True)
    return table.filter(pa.array(m != MAP or step in wanted for m, step in rows))

"""Edge file for joma[hf]: the readings of a monitor, once, for a model on disk."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from joma._core.errors import JomaError
from joma._core.extras import extra
from joma.monitor.monitor import DEFAULT
from joma.probes.observe import observe
from joma.records.schema import Reading

with extra("hf", packages=("transformers",), purpose="Reading a model directory"):
    import transformers
    from transformers import AutoConfig, AutoModel, AutoTokenizer

LENGTH: Final = 256
"""Tokens of a sequence, where the model takes that many."""
SEQUENCES: Final = 4
"""Sequences that are looked at, at most."""
_TOKENIZERS: Final = ("tokenizer*", "vocab*", "*.model")


@dataclass(frozen=True)
class Rank:
    """Stable rank of one matrix, or its mean over experts, between certified bounds."""

    site: str
    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Row:
    """What was read of one attention, and of the MLP of its layer."""

    layer: int
    site: str
    """Which attention, where a layer has several."""
    entropy: float
    """Nats, mean over heads."""
    fraction: float
    """The same, as a share of the largest that it can be."""
    logit: float
    """The largest over heads."""
    ranks: tuple[Rank, ...]


@dataclass(frozen=True)
class Snapshot:
    """One look at a model."""

    family: str
    sequences: int
    length: int
    rows: tuple[Row, ...]
    missing: tuple[str, ...]
    """Tensors that the files do not hold: they are random."""


def snapshot(directory: Path, text: Path) -> Snapshot:
    """Show the beginning of a text to the model in a directory, and read every layer."""
    if not (directory / "config.json").is_file():
        raise JomaError(f"{directory} is no model directory: there is no config.json in it.")
    model, missing = _loaded(directory)
    tokens = _tokens(directory, text, model.config)
    batch = {"input_ids": tokens}
    if getattr(model.config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = tokens
    seen = observe(model, DEFAULT)
    with torch.no_grad(), seen:
        model(**batch)
    sequences, length = tokens.shape
    return Snapshot(seen.family, sequences, length, tabulated(seen.readings()), missing)


def tabulated(readings: Iterable[Reading]) -> tuple[Row, ...]:
    """Readings of a model as one row for each attention, from the input upwards."""
    groups: dict[tuple[str, int, str], list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.layer is not None:
            groups[reading.metric, reading.layer, reading.site or ""].append(reading)
    ranks: dict[int, list[Rank]] = defaultdict(list)
    for (metric, layer, site), found in groups.items():
        if metric == "stable_rank":
            ranks[layer].append(_rank(site, found))

    def values(metric: str, layer: int, site: str) -> list[float]:
        return [r.value for r in groups.get((metric, layer, site), ())]

    places = sorted({key[1:] for key in groups if key[0] == "attention_entropy"})
    return tuple(
        Row(
            layer,
            site,
            _mean(values("attention_entropy", layer, site)),
            _mean(values("attention_entropy_fraction", layer, site)),
            max(values("max_attention_logit", layer, site), default=math.nan),
            tuple(ranks[layer]),
        )
        for layer, site in places
    )


def _loaded(directory: Path) -> tuple[Any, tuple[str, ...]]:
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    names = config.architectures or ()
    kind = next((getattr(transformers, n) for n in names if hasattr(transformers, n)), AutoModel)
    model, about = kind.from_pretrained(directory, local_files_only=True, output_loading_info=True)
    return model.eval(), tuple(sorted(about["missing_keys"]))


def _tokens(directory: Path, text: Path, config: Any) -> Tensor:
    # Without these files, transformers makes an empty tokenizer and says nothing.
    if not any(path for pattern in _TOKENIZERS for path in directory.glob(pattern)):
        raise JomaError(
            f"There is no tokenizer in {directory}. Save it there: tokenizer.save_pretrained."
        )
    tokeniser = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    positions = getattr(config, "max_position_embeddings", None) or LENGTH
    most = min(LENGTH, positions, tokeniser.model_max_length)
    cut = {"truncation": True, "max_length": most, "return_overflowing_tokens": True}
    rows = tokeniser(text.read_text(encoding="utf-8"), **cut)["input_ids"]
    full = [row for row in rows if len(row) == most][:SEQUENCES] or rows[:1]
    if len(full[0]) < 2:
        raise JomaError(f"{text} has {len(full[0])} tokens; attention needs at least 2.")
    return torch.tensor(full)


def _rank(site: str, found: Sequence[Reading]) -> Rank:
    bounds = [(r.lower, r.upper) if r.lower is not None else (r.value,) * 2 for r in found]
    low, high = (_mean([float(pair[i] or math.nan) for pair in bounds]) for i in (0, 1))
    return Rank(site, _mean([r.value for r in found]), low, high)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan

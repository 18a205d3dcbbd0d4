"""The runs behind `joma bench diagnosis`: small language models around the edge of stability.

Written down before the first of them was trained: settings, learning rates, which settings
calibrate and which are held out. `python -m joma.bench._diagnosis_runs CORPUS FOLDER` trains all.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from joma.data import text
from joma.metrics.entropy import PROBE as ENTROPY
from joma.metrics.logits import PROBE as LOGITS
from joma.models.language import Block, CausalAttention, LanguageConfig, LanguageModel
from joma.probes.observe import Observation, observe
from joma.records import arrow
from joma.records.schema import OK, Context, Kind, Reading, Record

STEPS: Final = 1000
AT: Final = (*range(0, 50, 5), *range(50, 200, 10), *range(200, STEPS + 1, 25))
"""Steps that are measured; step s is the state after s updates."""
KEPT: Final = (
    "attention_entropy",
    "attention_entropy_sink_free",
    "sink_mass",
    "max_attention_logit",
)
FILE: Final = "records.parquet"
ONE_FILE: Final = "one-layer.parquet"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything about a run but its learning rate. Calibration and held-out runs share none."""

    name: str
    held_out: bool
    layers: int
    norm_place: str = "post"
    length: int = 35
    batch: int = 8
    warmup: int = 0
    weight_decay: float = 0.0
    qk_norm: bool = False
    vocabulary: int = 1000
    width: int = 64
    heads: int = 2
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)

    @property
    def runs(self) -> tuple[tuple[str, float], ...]:
        """Name and peak learning rate of each run."""
        return tuple((f"{self.name}/lr{rate:g}", rate) for rate in self.rates)


_SLOW: Final = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SETUPS: Final = (
    Setup(name="1-post", held_out=False, layers=1, rates=_SLOW),
    Setup(name="4-post", held_out=False, layers=4),
    Setup(name="4-pre", held_out=False, layers=4, norm_place="pre"),
    Setup(name="1-post-warmup", held_out=False, layers=1, warmup=100),
    Setup(name="4-pre-decay", held_out=False, layers=4, norm_place="pre", weight_decay=0.1),
    Setup(name="1-post-256", held_out=False, layers=1, length=256, batch=2),
    Setup(name="1-post-batch32", held_out=False, layers=1, batch=32),
    Setup(name="1-post-qknorm", held_out=False, layers=1, qk_norm=True),
    Setup(name="1-pre", held_out=True, layers=1, norm_place="pre", rates=_SLOW),
    Setup(name="4-post-warmup", held_out=True, layers=4, warmup=100),
    Setup(name="1-post-decay", held_out=True, layers=1, weight_decay=0.1),
    Setup(name="4-pre-256", held_out=True, layers=4, norm_place="pre", length=256, batch=2),
    Setup(
        name="1-pre-256-warmup",
        held_out=True,
        layers=1,
        norm_place="pre",
        length=256,
        batch=2,
        warmup=100,
    ),
    Setup(name="4-post-batch32", held_out=True, layers=4, batch=32),
    Setup(name="4-post-qknorm", held_out=True, layers=4, qk_norm=True),
)
ONE: Final = Setup(
    name="1-post-200",
    held_out=True,
    layers=1,
    batch=20,
    vocabulary=2000,
    width=200,
    heads=1,
    rates=(1e-3, 1e-2),
)
"""One layer of the authors' width, for 200 steps. Trained when the thresholds had been chosen, to
see what they say about another size; a similar run had been tried with the candidates."""
ONE_STEPS: Final = 200


class QkNormAttention(CausalAttention):
    """Queries and keys at unit root mean square: no logit exceeds the root of the head's width."""

    def forward(self, x: Float[Tensor, "batch query embed"]) -> Float[Tensor, "batch query embed"]:
        heads = (self.config.num_heads, -1)
        q, k, v = (
            part(x).unflatten(-1, heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        q, k = (F.rms_norm(part, part.shape[-1:]) for part in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return out


def model_of(setup: Setup) -> LanguageModel:
    """The untrained model; layers start differently, and there is no dropout."""
    config = LanguageConfig(
        vocab=setup.vocabulary,
        layers=setup.layers,
        embed=setup.width,
        hidden=setup.width,
        num_heads=setup.heads,
        dropout=0.0,
        norm_place="pre" if setup.norm_place == "pre" else "post",
        same_start=False,
    )
    model = LanguageModel(config, seed=0)
    if setup.qk_norm:
        for block in model.blocks:
            assert isinstance(block, Block)
            normalised = QkNormAttention(config)
            normalised.load_state_dict(block.attention.state_dict())
            block.attention = normalised
    return model


def train(
    setup: Setup, name: str, rate: float, corpus: text.Corpus, steps: int = STEPS
) -> Iterator[Record]:
    """The records of one run: Adam (decoupled decay), linear warm-up, then a constant rate."""
    model = model_of(setup)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=setup.weight_decay)
    rows = text.batchify(corpus.train, setup.batch)
    probe = text.window(text.batchify(corpus.valid, 560 // setup.length + 1), 0, setup.length)
    seen = observe(model, [ENTROPY, LOGITS], check=False)

    def record(step: int, context: Context, reading: Reading) -> Record:
        return Record(name, float(step), reading, context=context, sequence_length=setup.length)

    yield _unigram(name, corpus, probe)
    for step in range(steps + 1):
        now = rate * min(1.0, (step + 1) / setup.warmup) if setup.warmup else rate
        loss = _loss(model, text.window(rows, step % text.window_count(rows), setup.length))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if step in AT:
            norm = float(
                nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            )
            yield record(step, Context.TRAIN, _reading("loss", float(loss.detach())))
            yield record(step, Context.TRAIN, _reading("gradient_norm", norm))
            yield record(step, Context.TRAIN, _reading("learning_rate", now))
            for reading in _looked(model, seen, probe):
                yield record(step, Context.PROBE, reading)
        for group in optimiser.param_groups:
            group["lr"] = now
        optimiser.step()


def _loss(model: nn.Module, batch: text.Window) -> Tensor:
    return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())


def _looked(model: nn.Module, seen: Observation, probe: text.Window) -> Iterator[Reading]:
    seen.reset()
    with torch.no_grad(), seen:
        loss = float(_loss(model, probe))
    yield _reading("loss", loss)
    yield from (reading for reading in seen.streamed() if reading.metric in KEPT)


def _reading(metric: str, value: float) -> Reading:
    return Reading(metric, value, status="not a number" if math.isnan(value) else OK)


def _unigram(name: str, corpus: text.Corpus, probe: text.Window) -> Record:
    """The loss on the probe batch of word frequencies alone, as a control of the run."""
    counts = torch.bincount(corpus.train, minlength=len(corpus.vocabulary)).double()
    value = float(-(counts / counts.sum()).log()[probe.targets].mean())
    reading = Reading("loss", value)
    return Record(
        name, 0.0, reading, Kind.CONTROL, Context.PROBE, sequence_length=probe.inputs.shape[1]
    )


def main(source: Path, folder: Path) -> None:
    """Train every run, one after the other, and keep the records in two files."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    _keep(SETUPS, STEPS, source, folder / FILE)
    _keep((ONE,), ONE_STEPS, source, folder / ONE_FILE)


def _keep(setups: Sequence[Setup], steps: int, source: Path, path: Path) -> None:
    corpus = text.read(source, size=setups[0].vocabulary)
    records: list[Record] = []
    for setup in setups:
        for name, rate in setup.runs:
            records += train(setup, name, rate, corpus, steps)
            print(name, flush=True)
    pq.write_table(arrow.table(records), path, compression="zstd")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

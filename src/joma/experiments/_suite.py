"""Suites of checkpoints as evidence: where they come from, and what a sweep of one becomes here.

A source is named by a text, as `joma.sources.open` takes it; `OWN` stands for a suite of our own,
trained in the experiment's folder and saved as public suites are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch

from joma import sources
from joma._core.errors import JomaError
from joma.analysis.curves import Curve, curves
from joma.data import wikitext
from joma.experiments.base import Evidence
from joma.probes.base import AbstractWeightProbe
from joma.records import arrow
from joma.records.schema import Context, Kind, Record
from joma.sources.base import AbstractSource, Revision
from joma.sweep.job import Probe, Text
from joma.sweep.run import Sweep
from joma.sweep.shown import spots

OWN = "own"
SUITE, DRIFT = "suite", "random_drift"
MOST_LAYERS = 6  # drawn; of more, the first, the last and some between
PYTHIA = (  # 20 of 154 revisions; each is about 0.3 GB, at 2 bytes a parameter
    "hub:EleutherAI/pythia-160m@step0,step1,step2,step4,step8,step16,step32,step64,step128,step256"
    ",step512,step1000,step2000,step4000,step8000,step16000,step32000,step64000,step100000"
    ",step143000"
)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A GPT-NeoX model in training on WikiText-2, saved at powers of two and then regularly."""

    layers: int = 3
    embed: int = 128
    heads: int = 4
    hidden: int = 512
    vocab: int = 2000
    length: int = 64
    batch: int = 16
    learning_rate: float = 1e-3
    steps: int = 1500
    every: int = 50
    shard: int = 1_000_000
    """Bytes of one file at most, as far as tensors can be parted."""

    @property
    def revisions(self) -> tuple[int, ...]:
        """Steps that are saved, in the manner of Pythia."""
        powers = {2**i for i in range(10) if 2**i <= self.steps}
        regular = set(range(self.every, self.steps + 1, self.every))
        return tuple(sorted({0, self.steps} | powers | regular))


SMALL = Suite(
    layers=2, embed=32, heads=2, hidden=64, vocab=300, length=32, batch=8, steps=48, every=24,
    shard=30_000,
)  # fmt: skip


def opened(
    where: str, suite: Suite, seed: int, folder: Path
) -> tuple[AbstractSource, list[pa.Table]]:
    """A source of one training run, and for a suite of our own the loss that it was trained to."""
    if where != OWN:
        return sources.open(where), []
    own = import_module("joma.experiments._suite_hf")  # here, as it needs transformers
    losses = own.written(suite, seed, folder / SUITE, folder / "training")
    return sources.open(f"local:{folder / SUITE}"), [labelled(losses, SUITE, seed)]


def held_out(length: int, sequences: int) -> Text:
    """The beginning of WikiText's validation text, the same for WikiText-2 and -103."""
    return Text(content("valid"), length=length, sequences=sequences)


def content(split: str) -> str:
    """One split of WikiText-2, as it is."""
    return (wikitext.folder() / f"{split}.txt").read_text(encoding="utf-8")


def swept(
    source: AbstractSource,
    probes: Sequence[str] | Mapping[str, Probe],
    out: Path,
    text: Text | None = None,
) -> pa.Table:
    """Every reading of every revision of one training run. Interrupted, it goes on."""
    runs = sorted({r.run for r in source.revisions() if r.problem is None})
    if len(runs) > 1:
        raise JomaError(
            f"{source.spec} holds {len(runs)} training runs ({', '.join(runs[:3])}, …); an "
            "experiment reads one. Choose it: KIND:WHERE@REVISIONS."
        )
    outcome = Sweep(source, probes, out=out, text=text).run()
    for task, reason in outcome.quarantined.items():
        raise JomaError(f"{len(outcome.quarantined)} tasks were not done. {task}: {reason}")
    return outcome.store.read()


def labelled(table: pa.Table, arm: str, seed: int, kind: Kind = Kind.MEASURED) -> pa.Table:
    """The same rows as those of an arm. A lone checkpoint that states no step stands at 0."""
    count = table.num_rows
    columns = {
        "run": pa.array([f"{arm}/seed{seed}"] * count),
        "kind": pa.array([kind.value] * count),
        "step": pc.if_else(pc.is_nan(table["step"]), 0.0, table["step"]),
    }
    for name, values in columns.items():
        field = arrow.SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, values.cast(field.type))
    return table


def drifted(source: AbstractSource, probes: Sequence[AbstractWeightProbe], seed: int) -> pa.Table:
    """The control: every matrix moved as far from where it started, in a random direction.

    What movement alone does to a metric. The direction of a matrix stays the same over training.
    """
    rows = []
    for probe in probes:
        first: dict[str, torch.Tensor] = {}
        for revision in placed(source):
            generator = torch.Generator().manual_seed(seed)
            for spot in spots(
                probe.need, source.index(revision.name), source.config(revision.name)
            ):
                tensors = spot.take(source.read(revision.name, spot.names))
                now = tensors["weight"].float()
                start = first.setdefault(spot.key, now)
                noise = torch.randn(start.shape, generator=generator)
                moved = start + noise * ((now - start).norm() / noise.norm())
                readings, _ = probe.measure(spot.place, {"weight": moved})
                rows += [Record(DRIFT, revision.at, r, context=Context.WEIGHTS) for r in readings]
    return labelled(arrow.table(rows), DRIFT, seed, Kind.CONTROL)


def placed(source: AbstractSource) -> list[Revision]:
    """Revisions that state a step, in order."""
    return [r for r in source.revisions() if not math.isnan(r.at)]


def by_layer(evidence: Evidence, metric: str, arm: str) -> dict[int, list[Curve]]:
    """Curves of an arm over training, heads averaged, by layer (-1: of the whole model) and seed.

    Of an MLP with a gate, the matrix that the gate multiplies comes last and is taken.
    """
    found: dict[int, dict[str, Curve]] = {}
    for curve in curves(evidence.table, [metric]):
        if curve.run.split("/", 1)[1].rsplit("/", 1)[0] == arm:
            layer = -1 if curve.layer is None else curve.layer
            found.setdefault(layer, {})[curve.run] = curve
    if not found:
        evidence.curve(metric, arm=arm, seed=0)  # raises, and says what there is
    return {layer: list(by_run.values()) for layer, by_run in sorted(found.items())}


def some(layers: Sequence[int]) -> list[int]:
    """The layers to draw: all, or if they are many, evenly spaced ones with both ends."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    places = (round(i * (len(layers) - 1) / (MOST_LAYERS - 1)) for i in range(MOST_LAYERS))
    return [layers[place] for place in places]

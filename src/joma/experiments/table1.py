"""Table 1: do hidden units of a trained Transformer stand for the latents of a hierarchy?

Each latent is matched with its best unit. The best of 400 units correlates with anything, above
all where there are as few inputs as in the paper's data, so a trained model is shown beside the
same model untrained and beside units of pure noise, and on sampled data a unit is chosen on one
half of the samples and scored on the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from joma.experiments import _table1_claims as claims, _table1_figure
from joma.experiments._table1_claims import NEAR, RISE, S0, S0_LEAST, S1
from joma.experiments._table1_data import (
    TABLE,
    FixedTask,
    NoisyCell,
    NoisyTask,
    Printed,
    Sampled,
)
from joma.experiments._table1_model import HIDDEN, build, evaluate, train
from joma.experiments.base import Claim, Experiment, PaperRef, records
from joma.metrics.correlation import Correlation, best_match, held_out_match, normalized_correlation
from joma.models.language import LanguageModel
from joma.records.schema import Kind

CHUNK = 500  # samples evaluated at once
FIRST_LONG = (0, 20, 40, 60, 100, 200, 400, 600, 800)


@dataclass(frozen=True, kw_only=True)
class SampledConfig:
    """Sampled HBLT(rho): its cells, and a smaller model, as every sample of a batch counts."""

    cells: tuple[NoisyCell, ...]
    iterations: int
    embed: int = 128  # ours: 20 s for 150 iterations; 256 costs twice as much
    rate: float = 3e-4  # ours: at 1e-4 this width has not learned the classes after 150 iterations
    samples: int = 4000  # half to choose units, half to score them


@dataclass(frozen=True, kw_only=True)
class Config:
    """Cells of the paper's data and how long to train on them."""

    embed: int
    iterations: int
    at: tuple[int, ...]
    """Iterations to look at."""
    sampled: SampledConfig
    cells: tuple[Printed, ...] = TABLE
    trained_seeds: int = 5
    """Only the first seeds train; untrained models and noise are shown for all."""
    untrained_embed: int = 1024  # the authors', as `paper` trains
    rate: float = 1e-4  # the authors' draw_table_1.py; paper and README say 1e-5
    decay: float = 1e-4  # the authors'


def run(config: Config, seed: int) -> Iterator[pa.Table]:
    """Rows trained, untrained and noise of every cell."""
    for cell in config.cells:
        yield from _fixed_controls(config, cell, seed)
        if seed < config.trained_seeds:
            yield from _fixed(config, cell, seed)
    if seed < config.trained_seeds:
        for noisy in config.sampled.cells:
            yield from _sampled(config, noisy, seed)


def _fixed(config: Config, cell: Printed, seed: int) -> Iterator[pa.Table]:
    task = FixedTask.of(cell.hierarchy, seed)
    pad = task.config.pad
    model = build(task.config.vocabulary, cell.classes, config.embed, seed)
    steps = train(
        model,
        task.batch,
        pad,
        iterations=config.iterations,
        rate=config.rate,
        decay=config.decay,
        at=config.at,
    )
    for step, loss in steps:
        yield records(cell.arm, seed, metric="loss", step=[step], value=[loss])
        yield _rows(cell.arm, seed, step, _scores(model, task))


def _fixed_controls(config: Config, cell: Printed, seed: int) -> Iterator[pa.Table]:
    task = FixedTask.of(cell.hierarchy, seed)
    model = build(task.config.vocabulary, cell.classes, config.untrained_embed, seed)
    untrained = _scores(model, task)
    yield _rows(f"{cell.arm}_untrained", seed, 0, untrained, Kind.CONTROL)
    units = torch.randn(2, cell.classes, HIDDEN, generator=task.generator)
    noise = [_best(*pair) for pair in zip(units, task.drawn.latents, strict=True)]
    yield _rows(f"{cell.arm}_noise", seed, 0, noise, Kind.CONTROL)


@torch.no_grad()
def _scores(model: LanguageModel, task: FixedTask) -> list[float]:
    pooled = evaluate(model, task.drawn.sequences, task.config.pad).pooled
    return [_best(*pair) for pair in zip(pooled, task.drawn.latents, strict=True)]


def _best(units: Float[Tensor, "samples hidden"], latents: Tensor) -> float:
    """Mean over the latents that vary of the best correlation: an entry of Table 1."""
    return best_match(normalized_correlation(units, latents), len(units)).score


def _sampled(config: Config, cell: NoisyCell, seed: int) -> Iterator[pa.Table]:
    sampled, task = config.sampled, NoisyTask.of(cell, seed)
    held = task.sample(sampled.samples)
    distinct = len({tuple(row) for row in held.sequences.tolist()})
    yield records(cell.arm, seed, metric="distinct_inputs", step=[0], value=[float(distinct)])
    units = torch.randn(2, sampled.samples, HIDDEN, generator=task.generator)
    noise = _held_out((units[0], units[1]), held)
    yield _rows(f"{cell.arm}_noise", seed, 0, noise, Kind.CONTROL)
    model = build(cell.tokens + 1, cell.classes, sampled.embed, seed)
    steps = train(
        model,
        task.batch,
        cell.tokens,
        iterations=sampled.iterations,
        rate=sampled.rate,
        decay=config.decay,
        at=(0, sampled.iterations),
    )
    for step, loss in steps:
        yield records(cell.arm, seed, metric="loss", step=[step], value=[loss])
        scores = _held_out(_pooled(model, held, cell.tokens), held)
        yield _rows(cell.arm, seed, step, scores)
        if step == 0:
            yield _rows(f"{cell.arm}_untrained", seed, 0, scores, Kind.CONTROL)


@torch.no_grad()
def _pooled(model: LanguageModel, drawn: Sampled, pad: int) -> tuple[Tensor, ...]:
    ids = drawn.sequences
    chunks = (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
    parts = [evaluate(model, chunk, pad).pooled for chunk in chunks]
    return tuple(torch.cat(layer) for layer in zip(*parts, strict=True))


def _held_out(units: tuple[Tensor, ...], drawn: Sampled) -> list[float]:
    """Mean correlation per level with the unit that is best on the other half of the samples."""
    found = []
    for layer, latents in zip(units, drawn.latents, strict=True):
        half = len(layer) // 2
        chosen_on = Correlation.of(layer[:half], latents[:half])
        scored_on = Correlation.of(layer[half:], latents[half:])
        found.append(held_out_match(chosen_on, scored_on).nanmean().item())
    return found


def _rows(
    arm: str, seed: int, step: int, scores: list[float], kind: Kind = Kind.MEASURED
) -> pa.Table:
    return records(arm, seed, kind=kind, metric=[S0, S1], step=[step] * 2, value=scores)


CI_SAMPLED = SampledConfig(cells=(NoisyCell(classes=20, rho=0.9),), iterations=100)
PAPER_SAMPLED = SampledConfig(
    cells=(
        NoisyCell(classes=20, rho=0.9),
        NoisyCell(classes=20, rho=0.95),
        NoisyCell(classes=50, rho=0.9),
    ),
    iterations=200,
)
_CONTROL = "the same models untrained, and 400 units of Gaussian noise"
_LEARNS = (
    f"mean over seeds higher after training than before in every cell, and by >= {RISE} on average"
    " over cells; noise lower than trained in every cell"
)

EXPERIMENT = Experiment(
    title="Hidden units and the latents of a hierarchy, before and after training.",
    paper=PaperRef(item="Table 1", theorems=(5,)),
    version=1,
    presets={
        "ci": Config(
            embed=256, iterations=120, at=(0, 60, 120), sampled=CI_SAMPLED, trained_seeds=1
        ),
        "long": Config(
            embed=1024,
            iterations=10_000,
            at=(*FIRST_LONG, *range(1000, 10_001, 500)),
            sampled=CI_SAMPLED,
            cells=TABLE[:1],
            trained_seeds=1,
        ),
        "paper": Config(embed=1024, iterations=60, at=(0, 20, 40, 60), sampled=PAPER_SAMPLED),
    },
    run=run,
    seeds=5,
    cost="ci 105 s; from timed iterations paper 30 min, long 25 min; one core",
    claims=(
        Claim(
            name="lowest_layer",
            says="Table 1, s = 0: trained units of the lowest layer stand for the lowest latents.",
            control=_CONTROL,
            rule=f"s = 0 >= {S0_LEAST} in every cell mean; not distinguishable if training does not"
            f" raise it by >= {RISE} on average over cells",
            decide=claims.lowest_layer,
        ),
        Claim(
            name="next_layer",
            says="Table 1, s = 1: units of the next layer come to stand for the latents above.",
            control=_CONTROL,
            rule=f"s = 1: {_LEARNS}",
            decide=claims.next_layer,
        ),
        Claim(
            name="printed",
            says="Table 1, C = 20: the values that the paper prints for s = 1.",
            control="the same models untrained",
            rule=f"every cell mean with C = 20 within {NEAR} of print; not distinguishable if those"
            " of the untrained models are as well",
            decide=claims.printed,
        ),
        Claim(
            name="sampled_lowest",
            says="Table 1, s = 0, on samples of HBLT(rho < 1), scored on samples of their own.",
            control=_CONTROL,
            rule=f"s = 0: {_LEARNS}",
            decide=claims.sampled_lowest,
        ),
        Claim(
            name="sampled_next",
            says="Table 1, s = 1, on samples of HBLT(rho < 1), scored on samples of their own.",
            control=_CONTROL,
            rule=f"s = 1: {_LEARNS}",
            decide=claims.sampled_next,
        ),
    ),
    deviations=(
        "60 iterations, not 10 000: the loss is below .01 by 50, and s = 1 hardly moves between 60"
        " and 800 (.800 to .791 in one cell). The preset `long` trains one cell for all 10 000.",
        "Latents that are on in no class or in all have no correlation and are left out; counted"
        " as 0 they would pull s = 0 below the paper's numbers.",
        "Order of tokens, identity of the pad and order of draws are not known to us, nor how the"
        " authors averaged. Weights start as those of our Figure 6 model do.",
        "The paper has no sampled data, no untrained model and no noise. Sampled cells: tree with"
        " 20 top latents, 40 below them and 80 tokens; a class decides each top latent with"
        " probability .95. Width 128, and a learning rate of 3e-4 after the loss (not the scores)"
        " of one cell under another seed had been seen at 1e-4, 3e-4 and 1e-3.",
        "The bar for `lowest_layer` and the average rise were set by a prototype of the same cells"
        " (width 256, 120 iterations, other seeds); the same rise is asked of sampled data.",
    ),
    figure=_table1_figure.figure,
)

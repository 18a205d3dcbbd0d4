"""Figure 10: MLP units of a suite's models that fire for unrelated contexts."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from joma._core.errors import MissingDataError
from joma._core.typing import Array
from joma.experiments import _superposition as statistic
from joma.experiments._figure import range_over
from joma.experiments._suite import (
    OWN,
    PYTHIA,
    SMALL,
    Suite,
    by_layer,
    content,
    opened,
    placed,
    some,
)
from joma.experiments.base import (
    Claim,
    Evidence,
    Experiment,
    Finding,
    PaperRef,
    Verdict,
    records,
)
from joma.experiments.superposition import (
    ARMS,
    DIRECTIONS,
    MANY,
    MARGIN,
    PATTERNS,
    RANDOM,
    SUPERPOSED,
    TOP,
    UNITS,
)
from joma.records.schema import Kind
from joma.report.panels import Line, Panel

TEXT = 400_000  # characters of WikiText-2 that say which words have like neighbours
SHORTEST = 8  # words of a sentence of WikiText


@dataclass(frozen=True, kw_only=True)
class Config:
    """A suite, sentences to read to it, and how closely to look."""

    source: str = OWN
    """As `joma.sources.open` takes it; `own` is trained on the spot."""
    suite: Suite
    """If it is our own."""
    sentences: str | None = None
    """A file with one sentence per line; if absent, sentences of WikiText's validation text."""
    count: int = 600
    """Sentences at most."""
    longest: int = 64
    """Tokens of a sentence at most."""
    words: int = 1000
    """Positions count where this token and the next are so frequent."""
    units: int = 512
    """Units of a layer at most, evenly spaced."""
    looks: int = 8
    """Revisions, with the first and the last."""


def run(config: Config, seed: int, folder: Path) -> Iterator[pa.Table]:
    """Share of superposed units, by layer: of units, random directions and random contexts."""
    source, losses = opened(config.source, config.suite, seed, folder)
    yield from losses
    show = import_module("joma.experiments._suite_units")  # here, as it needs transformers
    revisions = placed(source)
    places = np.linspace(0, len(revisions) - 1, min(config.looks, len(revisions)))
    chosen = [revisions[round(i)] for i in places]
    text = show.read(
        source,
        chosen[0].name,
        sentences(config),
        content("train")[:TEXT],
        words=config.words,
        longest=config.longest,
    )
    vectors = statistic.neighbourhoods(text.background, config.words)
    for i, revision in enumerate(chosen):
        for layer, inputs, units in show.layers(source, revision.name, text.sentences):
            rng = np.random.default_rng([seed, i, layer])
            found = seen(inputs, units, text, vectors, config.units, rng)
            for (arm, metric), value in found.items():
                kind = Kind.MEASURED if arm == UNITS else Kind.CONTROL
                place = {"layer": [layer], "step": [revision.at]}
                yield records(arm, seed, kind=kind, metric=metric, value=[value], **place)


def sentences(config: Config) -> list[str]:
    """What is read to every revision."""
    if config.sentences is None:
        found = [f"{s} ." for s in content("valid").replace("\n", " . ").split(" . ")]
        return [s for s in found if len(s.split()) > SHORTEST][: config.count]
    path = Path(config.sentences)
    if not path.is_file():
        raise MissingDataError(f"Needs {path}, a file with one sentence per line; it is not there.")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()][: config.count]


def seen(
    inputs: Array, units: Array, text: Any, vectors: Array, most: int, rng: np.random.Generator
) -> dict[tuple[str, str], float]:
    """Share of superposed units and patterns per unit, by arm."""
    known = (text.word > 0) & (text.following > 0)
    spaced = np.unique(np.linspace(0, units.shape[1] - 1, min(most, units.shape[1])).astype(int))
    inputs, units = inputs[known], units[known][:, spaced]
    directions = inputs @ rng.standard_normal((inputs.shape[1], len(spaced)))
    chosen = {
        UNITS: statistic.top_contexts(units, TOP),
        DIRECTIONS: statistic.top_contexts(directions, TOP),
        RANDOM: statistic.random_contexts(len(units), len(spaced), TOP, rng),
    }
    found = {}
    for arm, contexts in chosen.items():
        related = statistic.relatedness(contexts, text.word[known], text.following[known], vectors)
        found[arm, SUPERPOSED] = float(related.superposed.mean())
        found[arm, PATTERNS] = float(related.patterns.mean())
    return found


# --- claims --------------------------------------------------------------------------------------


def unrelated(evidence: Evidence) -> Finding:
    units, chance = (_shares(evidence, arm, -1) for arm in (UNITS, RANDOM))
    effect = all(np.all(share >= MANY) for share in units.values())
    matched = any(np.any(chance[layer] > units[layer] - MARGIN) for layer in units)
    numbers = {f"layer {layer}": share for layer, share in units.items()}
    numbers["random contexts, most"] = np.max(list(chance.values()), 0)
    return Finding.over_seeds(Verdict.of(effect=effect, control=matched), numbers)


def learned(evidence: Evidence) -> Finding:
    units = _shares(evidence, UNITS, -1)
    controls = {
        "untrained": _shares(evidence, UNITS, 0),
        "random directions": _shares(evidence, DIRECTIONS, -1),
    }
    matched = any(
        np.any(c[layer] > units[layer] - MARGIN) for c in controls.values() for layer in c
    )
    effect = all(np.all(share >= MANY) for share in units.values())
    numbers = {f"layer {layer}": share for layer, share in units.items()}
    for name, control in controls.items():
        numbers |= {f"layer {layer}, {name}": share for layer, share in control.items()}
    return Finding.over_seeds(Verdict.of(effect=effect, control=matched), numbers)


def _shares(evidence: Evidence, arm: str, at: int) -> dict[int, Array]:
    """Share of superposed units by layer, at the first or last revision, one per seed."""
    found = by_layer(evidence, SUPERPOSED, arm)
    return {layer: np.array([c.values[at] for c in curves]) for layer, curves in found.items()}


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Share of superposed units and patterns per unit over training, by layer and arm."""
    layers = some(list(by_layer(evidence, SUPERPOSED, UNITS)))
    labels = {SUPERPOSED: "share of units", PATTERNS: "patterns per unit"}
    panels = []
    for metric, label in labels.items():
        for layer in layers:
            lines = [_line(evidence, metric, arm, layer) for arm in ARMS]
            panels.append(
                Panel(
                    title=f"Layer {layer}: {metric.replace('_', ' ')}; {range_over(evidence)}",
                    value_label=label,
                    time_label="step (0 = untrained)",
                    lines=tuple(lines),
                    log_time=True,
                )
            )
    return tuple(panels)


def _line(evidence: Evidence, metric: str, arm: str, layer: int) -> Line:
    found = by_layer(evidence, metric, arm)[layer]
    values = np.array([c.values for c in found])
    return Line(
        label=ARMS[arm],
        x=found[0].steps,
        y=np.median(values, 0),
        low=values.min(0),
        high=values.max(0),
        dashed=arm != UNITS,
    )


_WHAT = statistic.counted(TOP, "positions")

EXPERIMENT = Experiment(
    title="Units that fire for unrelated contexts, over the checkpoints of a suite.",
    paper=PaperRef(item="Figure 10"),
    version=1,
    presets={
        "ci": Config(suite=SMALL, count=120, words=200, looks=3, longest=32),
        "paper": Config(suite=Suite()),
        "pythia": Config(source=PYTHIA, suite=Suite(), sentences="sentences.txt"),
    },
    run=run,
    figure=figure,
    trains=True,
    seeds={"ci": 2, "paper": 1, "pythia": 1},
    cost="ci 10 s, paper about 5 min, one core; pythia loads 8 models, about 3 GB at 2 bytes a"
    " parameter, and was not run here",
    claims=(
        Claim(
            name="unrelated",
            says="Figure 10: one unit fires for several unrelated patterns.",
            control="as many positions drawn at random from the same sentences",
            rule=f"{_WHAT}: >= {MANY} at the last revision in every layer, every seed, and above"
            f" the control by >= {MARGIN}",
            decide=unrelated,
        ),
        Claim(
            name="learned",
            says="Figure 10, as a sign of training: units of an untrained model do not.",
            control="the same units at the first revision; random directions at the last",
            rule=f"the same share: >= {MANY} in every layer, every seed, and above both controls by"
            f" >= {MARGIN}",
            decide=learned,
        ),
    ),
    deviations=(
        "The paper shows chosen examples; we count units, with the statistic of superposition.",
        "`ci` and `paper` read a suite of our own, one seed, and sentences of WikiText-2; `pythia`"
        " names 20 revisions of 160m and needs sentences.txt, one sentence per line.",
        "A context is named by its token alone, not by what the token attends to.",
    ),
)

"""Figure 10's question: do units of a trained model fire for contexts that are unrelated?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from joma._core.typing import Array
from joma.experiments import _superposition as statistic
from joma.experiments._figure import line, range_over
from joma.experiments._language import Setting, Windows, corpus, held_out, trained
from joma.experiments._saliency_steps import at_steps
from joma.experiments.base import (
    Claim,
    Evidence,
    Experiment,
    Finding,
    PaperRef,
    Verdict,
    records,
)
from joma.models.language import Block, LanguageConfig, LanguageModel, Mlp
from joma.records.schema import Kind
from joma.report.panels import Panel

TOP = 20  # ours: contexts per unit, of some thousand
UNKNOWN = 0  # the id of <unk>, which is many words: contexts with it are left out
MODEL = "model"
UNITS, DIRECTIONS, RANDOM = "units", "directions", "random_contexts"
ARMS = {
    UNITS: "units",
    DIRECTIONS: "random directions",
    RANDOM: "random contexts",
}
SUPERPOSED, PATTERNS = "superposed_share", "patterns_per_unit"
SAME_WORD, SAME_NEXT, LIKENESS = "same_word_share", "same_next_share", "context_likeness"
LABELS = {
    SUPERPOSED: "share of units",
    PATTERNS: "mean over units",
    SAME_WORD: "share of pairs of contexts",
    SAME_NEXT: "share of pairs of contexts",
    LIKENESS: "mean cosine of their words",
}
MANY, MARGIN = 0.1, 0.1  # ours: every tenth unit; a tenth more than a control
EXCESS = 0.05  # ours: of same_next above random contexts


@dataclass(frozen=True, kw_only=True)
class Config:
    """One language model, looked at on the way."""

    model: LanguageConfig
    steps: tuple[int, ...]
    """Where it is looked at; from 0, the untrained model."""
    skip: int
    """Contexts come from every so-many-th validation window."""
    learning_rate: float = 1e-3  # as in fig6's small runs


def run(config: Config, seed: int, folder: Path) -> Iterator[pa.Table]:
    """Relatedness of the contexts of units, of random directions, and of random contexts."""
    text = corpus(config.model.vocab)
    windows = held_out(text, config.skip)
    vectors = statistic.neighbourhoods(text.train.numpy(), config.model.vocab)

    def look(model: LanguageModel, step: int) -> dict[str, Array]:
        return seen(model, windows, vectors, np.random.default_rng([seed, step]))

    chosen = setting(config)
    looks = dict(at_steps(chosen, MODEL, seed, folder, config.steps, look))
    yield trained(chosen, MODEL, seed, folder)[1]
    for arm in ARMS:
        kind = Kind.MEASURED if arm == UNITS else Kind.CONTROL
        for metric in LABELS:
            value = [float(arrays[f"{arm}.{metric}"]) for arrays in looks.values()]
            yield records(arm, seed, kind=kind, metric=metric, step=list(looks), value=value)


def setting(config: Config) -> Setting:
    """How the model is trained."""
    return Setting(
        model=config.model,
        learning_rate=config.learning_rate,
        steps=config.steps[-1],
        every=config.steps[-1],
        early=config.steps,
        skip=24,
    )


def seen(
    model: LanguageModel, windows: Windows, vectors: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """Means over units of every measure, as `ARM.METRIC`."""
    inputs, units, word, following = activations(model, windows)
    hidden = units.shape[1]
    directions = inputs @ rng.standard_normal((inputs.shape[1], hidden))
    chosen = {
        UNITS: statistic.top_contexts(units, TOP),
        DIRECTIONS: statistic.top_contexts(directions, TOP),
        RANDOM: statistic.random_contexts(len(units), hidden, TOP, rng),
    }
    found: dict[str, Array] = {}
    for arm, contexts in chosen.items():
        related = statistic.relatedness(contexts, word, following, vectors)
        means = {
            SUPERPOSED: related.superposed.mean(),
            PATTERNS: related.patterns.mean(),
            SAME_WORD: related.same_word.mean(),
            SAME_NEXT: related.same_next.mean(),
            LIKENESS: related.likeness.mean(),
        }
        found |= {f"{arm}.{metric}": np.asarray(value) for metric, value in means.items()}
    return found


@torch.no_grad()
def activations(model: LanguageModel, windows: Windows) -> tuple[Array, Array, Array, Array]:
    """Inputs and pre-activations of the first lower matrix, and words and next words.

    One row per position; those where either word is `<unk>` are left out.
    """
    block = model.blocks[0]
    assert isinstance(block, Block) and isinstance(block.mlp, Mlp)
    inputs: list[Tensor] = []
    units: list[Tensor] = []

    def keep(_: object, args: tuple[Tensor], out: Tensor) -> None:
        inputs.append(args[0].flatten(0, 1))
        units.append(out.flatten(0, 1))

    handle = block.mlp.lower.register_forward_hook(keep)
    try:
        for one in windows:
            model(one.inputs)
    finally:
        handle.remove()
    word = torch.cat([one.inputs.flatten() for one in windows])
    following = torch.cat([one.targets.flatten() for one in windows])
    known = (word != UNKNOWN) & (following != UNKNOWN)
    rows = (torch.cat(inputs), torch.cat(units), word, following)
    x, h, now, then = (part[known].numpy() for part in rows)
    return x, h, now, then


# --- claims --------------------------------------------------------------------------------------


def beyond_chance(evidence: Evidence) -> Finding:
    units, chance = (_at(evidence, SUPERPOSED, arm, -1) for arm in (UNITS, RANDOM))
    verdict = Verdict.of(effect=np.all(units >= MANY), control=np.any(chance > units - MARGIN))
    numbers = {"units": units, "random contexts": chance}
    numbers["patterns per unit"] = _at(evidence, PATTERNS, UNITS, -1)
    return Finding.over_seeds(verdict, numbers)


def learned(evidence: Evidence) -> Finding:
    units = _at(evidence, SUPERPOSED, UNITS, -1)
    controls = {
        "untrained": _at(evidence, SUPERPOSED, UNITS, 0),
        "random directions": _at(evidence, SUPERPOSED, DIRECTIONS, -1),
    }
    matched = any(np.any(value > units - MARGIN) for value in controls.values())
    verdict = Verdict.of(effect=np.all(units >= MANY), control=matched)
    return Finding.over_seeds(verdict, {"units": units, **controls})


def selective(evidence: Evidence) -> Finding:
    above = {
        "trained": _excess(evidence, UNITS, -1),
        "untrained": _excess(evidence, UNITS, 0),
        "random directions": _excess(evidence, DIRECTIONS, -1),
    }
    own = above["trained"]
    matched = any(np.any(above[c] > own / 2) for c in ("untrained", "random directions"))
    verdict = Verdict.of(effect=np.all(own >= EXCESS), control=matched)
    words = {
        f"{metric}, {name}": _at(evidence, metric, UNITS, i)
        for metric in (SAME_WORD, LIKENESS)
        for name, i in (("trained", -1), ("untrained", 0))
    }
    chance = {"random contexts": _at(evidence, SAME_NEXT, RANDOM, -1)}
    return Finding.over_seeds(verdict, {**above, **chance, **words})


def _excess(evidence: Evidence, arm: str, index: int) -> Array:
    """Share of pairs with the same next word, above that of random contexts at the same step."""
    own, chance = (_at(evidence, SAME_NEXT, a, index) for a in (arm, RANDOM))
    return np.asarray(own - chance)


def _at(evidence: Evidence, metric: str, arm: str, index: int) -> Array:
    return np.array([c.values[index] for c in evidence.curves(metric, arm=arm)])


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Every measure over training, for units, random directions and random contexts."""
    seeds = range_over(evidence)
    return tuple(
        Panel(
            title=f"{metric.replace('_', ' ').capitalize()}; {seeds}",
            value_label=label,
            time_label="step",
            lines=tuple(
                line(evidence, metric, arm, label=name, dashed=arm != UNITS)
                for arm, name in ARMS.items()
            ),
        )
        for metric, label in LABELS.items()
    )


_WHAT = statistic.counted(TOP, "contexts")

EXPERIMENT = Experiment(
    title="Units that fire for unrelated contexts: trained, untrained, and by chance.",
    paper=PaperRef(item="Figure 10"),
    version=1,
    presets={
        "ci": Config(
            model=LanguageConfig(vocab=300, embed=32, hidden=32), steps=(0, 20, 40), skip=24
        ),
        "paper": Config(
            model=LanguageConfig(vocab=1000, embed=128, hidden=128),
            steps=(0, 50, 100, 250, 500, 1000, 1500, 2000),
            skip=8,
        ),
    },
    run=run,
    figure=figure,
    trains=True,
    seeds=3,
    cost="ci 15 s, paper about 5 min, one core",
    claims=(
        Claim(
            name="unrelated",
            says="Figure 10: one unit fires for several unrelated patterns.",
            control="as many contexts drawn at random from the same text",
            rule=f"{_WHAT}: >= {MANY} after training, every seed, and above the control by"
            f" >= {MARGIN}",
            decide=beyond_chance,
        ),
        Claim(
            name="learned",
            says="Figure 10, as a sign of training: units of an untrained model do not.",
            control="the same units before training; random directions in the trained model",
            rule=f"the same share: >= {MANY}, every seed, and above both controls by >= {MARGIN}",
            decide=learned,
        ),
        Claim(
            name="selective",
            says="Section 5: training makes a unit fire for contexts that belong together.",
            control="the same units before training; random directions in the trained model",
            rule="share of pairs of a unit's contexts with the same next word, above that of random"
            f" contexts: >= {EXCESS}, every seed, and over twice that of both controls",
            decide=selective,
        ),
    ),
    deviations=(
        "The paper shows sentences picked from large public models; this is a statistic of all"
        " units of a small one, which was trained here.",
        "A context is named by its last word alone, and words are alike if they have the same"
        " neighbours in the training text: the same yardstick for every model.",
        "Positions where the word or the next one is <unk> are left out.",
        "The `ci` preset has 300 words and 40 steps: it shows that the code runs, not the claims.",
    ),
)

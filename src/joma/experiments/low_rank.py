"""Slides, K > 1: whether the weights become low rank on the way to the blow-up."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from joma._core.typing import Array
from joma.experiments._figure import line, range_over
from joma.experiments.base import Claim, Evidence, Experiment, Finding, PaperRef, Verdict, records
from joma.records.schema import Kind
from joma.report.panels import Panel, Reference
from joma.theory import low_rank

STABLE, STABLE_OF_VELOCITY, RANK = "stable_rank", "velocity_stable_rank", "rank"
EARLY = 4.0  # step, in powers of ten of the time left
NEARLY_ONE, FALLEN = 1.05, 0.75


@dataclass(frozen=True, kw_only=True)
class Config:
    """A Gaussian saliency per seed, from rest, followed to 1e-16 of the time to the blow-up."""

    tokens: int
    hidden: int
    decades: int = 16
    per_decade: int = 8


def run(config: Config, seed: int) -> Iterator[pa.Table]:
    """Step is -log10 of the fraction of the time to the blow-up that is left."""
    delta = np.random.default_rng(seed).standard_normal((config.tokens, config.hidden))
    step = np.linspace(0.0, config.decades, config.decades * config.per_decade + 1)[1:]
    v = low_rank.near_blowup(10.0**-step, delta)
    ranks = {
        STABLE: low_rank.stable_rank(v),
        STABLE_OF_VELOCITY: low_rank.stable_rank(low_rank.velocity_direction(v, delta)),
        RANK: np.linalg.matrix_rank(v).astype(float),
    }
    for metric, value in ranks.items():
        yield records("attention", seed, metric=metric, step=step, value=value)
    # Without attention V = Delta t: one matrix up to a factor.
    still = np.full_like(step, low_rank.stable_rank(delta))
    for metric in (STABLE, STABLE_OF_VELOCITY):
        yield records(
            "no_attention", seed, kind=Kind.CONTROL, metric=metric, step=step, value=still
        )


def velocity_collapses(evidence: Evidence) -> Finding:
    found, control = (_at(evidence, STABLE_OF_VELOCITY, arm, EARLY) for arm in _ARMS)
    verdict = Verdict.of(
        effect=bool(np.all(found < NEARLY_ONE)), control=bool(np.any(control < NEARLY_ONE))
    )
    return Finding.over_seeds(verdict, {"stable rank": found, "control": control})


def weights_fall(evidence: Evidence) -> Finding:
    curves = evidence.curves(STABLE, arm="attention")
    first, last, top = (
        np.array([f(c.values) for c in curves]) for f in (lambda v: v[0], lambda v: v[-1], np.max)
    )
    control = _at(evidence, STABLE, "no_attention", np.inf)
    verdict = Verdict.of(
        effect=bool(np.all(last < FALLEN * first)), control=bool(np.any(control < FALLEN * first))
    )
    numbers = {
        "start": first,
        "end": last,
        "at 1e-4": _at(evidence, STABLE, "attention", EARLY),
        "rise before the fall": top - first,
    }
    return Finding.over_seeds(
        verdict, numbers, "It falls like 1 / ln(1 / eps), and may rise first."
    )


def rank_falls(evidence: Evidence) -> Finding:
    curves = evidence.curves(RANK, arm="attention")
    first, lowest = (np.array([f(c.values) for c in curves]) for f in (lambda v: v[0], np.min))
    verdict = Verdict.of(effect=bool(np.all(lowest < first)), control=False)
    note = "V = diag(.) Delta keeps the rank of Delta at all times (E23)."
    return Finding.over_seeds(verdict, {"start": first, "lowest": lowest}, note)


_ARMS = ("attention", "no_attention")


def _at(evidence: Evidence, metric: str, arm: str, step: float) -> Array:
    curves = evidence.curves(metric, arm=arm)
    return np.array([c.at(min(step, float(c.steps[-1]))) for c in curves])


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Stable ranks of the weights and of their velocity, and the algebraic rank."""
    early = Reference(label="1e-4 of the time left", low=EARLY, axis="time")

    def panel(title: str, label: str, metric: str, arms: tuple[str, ...]) -> Panel:
        lines = (line(evidence, metric, arm, dashed=arm != "attention") for arm in arms)
        return Panel(
            title=f"{title}; {range_over(evidence)}",
            value_label=label,
            time_label="time left before the blow-up, -log10 of its share",
            lines=tuple(lines),
            references=(early,),
        )

    rank = panel("Algebraic rank: constant", "rank of V", RANK, _ARMS[:1])
    highest = float(rank.lines[0].high.max())
    return (
        panel("Weights V: a slow fall", "stable rank of V", STABLE, _ARMS),
        panel("Velocity: rank one early", "stable rank of dV/dt", STABLE_OF_VELOCITY, _ARMS),
        replace(rank, value_range=(0.0, 1.2 * highest)),
    )


_CONTROL = "no attention: V = Delta t, whose stable rank is constant"

EXPERIMENT = Experiment(
    title="With several hidden nodes, the weights tend to low rank towards the blow-up.",
    paper=PaperRef(item="Slides, K > 1", theorems=(2,)),
    version=1,
    presets={"ci": Config(tokens=8, hidden=5), "paper": Config(tokens=50, hidden=20)},
    run=run,
    figure=figure,
    seeds=10,
    cost="ci 1 s, paper 5 s, one core",
    claims=(
        Claim(
            name="velocity",
            says="Slides: the increments of V become rank one.",
            control=_CONTROL,
            rule=f"stable rank of dV/dt < {NEARLY_ONE:g} at 1e-4 of the time; control not",
            decide=velocity_collapses,
        ),
        Claim(
            name="stable_rank",
            says="Slides: V gradually becomes low rank, read as its stable rank.",
            control=_CONTROL,
            rule=f"stable rank at the end < {FALLEN:g} of the one at the start; control not",
            decide=weights_fall,
        ),
        Claim(
            name="algebraic_rank",
            says="Slides: V gradually becomes low rank, as it is written.",
            control="none needed: a constant",
            rule="algebraic rank below the one at the start",
            decide=rank_falls,
        ),
    ),
    deviations=(
        "Time is counted by what is left of it, down to 1e-16: the fall is logarithmic.",
        "From rest, with Gaussian saliencies; the slides name none.",
    ),
)

"""Figure 9: the function G of Lemma 4, whose chords decide whether two clusters can balance.

The paper has a second function of that name, in Lemma 7; its bound is judged here too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from joma._core.typing import Array
from joma.experiments._figure import curve, dot, line
from joma.experiments.base import (
    Claim,
    Curve,
    Evidence,
    Experiment,
    Finding,
    PaperRef,
    Verdict,
    records,
)
from joma.records.schema import Kind
from joma.report.panels import Panel, Reference
from joma.theory import clusters, convergence, critical_points, projections
from joma.theory.projections import NORMAL, AbstractProjection, GaussianMixture, Logistic, StudentT

G, SLOPE, HEAVINESS, RATIO = "G", "slope", "heaviness", "strength_ratio"
LEMMA7, BARE = "lemma7", "lemma7_without_factor"

LAWS: Mapping[str, AbstractProjection] = MappingProxyType(
    {
        "normal": NORMAL,
        "logistic": Logistic(),
        "mixture": GaussianMixture((0.9, 0.1), (0.3, 3.0)),
        "student": StudentT(1.5),
    }
)
LIGHT, HEAVY = ("normal", "logistic"), ("mixture", "student")
QUARTER = 0.25  # Eqn. 58
EQUAL = 1e-6  # relative; the slope is a central difference
ROUNDING = 1e-9  # relative; less is no bend and no fall
TOP, AT = 0.765152080, 1.306929728  # largest value of Lemma 7's G, and its place
NEAR = 1e-8  # quadrature


@dataclass(frozen=True, kw_only=True)
class Config:
    """A grid of rho for Figure 9 and one of y for Lemma 7. Nothing is random."""

    points: int
    reach: float = 8.0
    stride: float = 1e-4
    levels: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)


def run(config: Config, seed: int) -> Iterator[pa.Table]:
    """G over y = theta_1 with its slope, for light and heavy tails; then Lemma 7's G over y."""
    rho = np.linspace(-config.reach, config.reach, config.points)
    for arm, law in LAWS.items():
        kind = Kind.MEASURED if arm in LIGHT else Kind.CONTROL
        y, value = law.cdf(rho), clusters.mean_activation(rho, law)
        inside = y < 1 - 1e-6  # closer to 1 the steps of y are rounding
        y, value, slope = y[inside], value[inside], _slope(rho[inside], law, config.stride)
        stated = y / law.density(rho[inside])
        yield records(arm, seed, kind=kind, metric=G, step=y, value=value)
        yield records(arm, seed, kind=kind, metric=SLOPE, step=y, value=slope)
        yield records(arm, seed, kind=Kind.PREDICTED, metric=SLOPE, step=y, value=stated)
        yield records(
            arm, seed, kind=kind, metric=HEAVINESS, step=[0], value=[projections.heaviness(law)]
        )
    ratios = _ratios(config.levels, LAWS["mixture"])
    yield records("mixture", seed, metric=RATIO, step=np.arange(len(ratios)), value=ratios)
    yield from _lemma7(config, seed)


def _slope(rho: Array, law: AbstractProjection, stride: float) -> Array:
    rise = clusters.mean_activation(rho + stride, law) - clusters.mean_activation(rho - stride, law)
    return np.asarray(rise / (law.cdf(rho + stride) - law.cdf(rho - stride)))


def _ratios(levels: tuple[float, ...], law: AbstractProjection) -> list[float]:
    """a_- / a_+ of every pair of points of G on one line through the origin."""
    return [
        critical_points.strength_ratio(*pair, law)
        for level in levels
        for pair in permutations(critical_points.level_roots(level, law).tolist(), 2)
    ]


def _lemma7(config: Config, seed: int) -> Iterator[pa.Table]:
    y = np.append(np.linspace(0.0, config.reach, config.points // 4)[1:], AT)

    def integral(at: float, damping: float) -> float:
        return projections.integral(lambda s: np.exp((s**2 - damping * at**2) / 2), (0.0, at))

    values = [integral(at, 1.0) for at in y.tolist()]
    bare = [integral(at, 0.0) for at in y.tolist()]
    yield records("lemma7", seed, metric=LEMMA7, step=y, value=values)
    yield records("lemma7", seed, kind=Kind.CONTROL, metric=BARE, step=y, value=bare)
    closed = convergence.lemma7(y)
    yield records("lemma7", seed, kind=Kind.PREDICTED, metric=LEMMA7, step=y, value=closed)


def slope(evidence: Evidence) -> Finding:
    errors, lowest = {}, {}
    for arm in LAWS:
        found = evidence.curve(SLOPE, arm=arm, seed=0, kind=_role(arm)).values
        stated = evidence.curve(SLOPE, arm=arm, seed=0, kind=Kind.PREDICTED).values
        errors[f"{arm} error"] = [np.abs(found / stated - 1).max()]
        lowest[f"{arm} lowest"] = [found.min()]
    effect = max(e[0] for e in errors.values()) < EQUAL and min(v[0] for v in lowest.values()) > 0
    return Finding.over_seeds(Verdict.of(effect=bool(effect), control=False), {**errors, **lowest})


def convex(evidence: Evidence) -> Finding:
    bends = {arm: _least_bend(_curve(evidence, arm), left=False) for arm in LAWS}
    left = _least_bend(_curve(evidence, "mixture"), left=True)
    verdict = Verdict.of(effect=min(bends.values()) > -ROUNDING, control=left > -ROUNDING)
    numbers = {f"{arm} least bend": [bend] for arm, bend in bends.items()}
    return Finding.over_seeds(verdict, numbers | {"mixture least bend, y < 1/2": [left]})


def eqn58(evidence: Evidence) -> Finding:
    falls = {arm: _falls(_curve(evidence, arm)) for arm in LAWS}
    heavy = {arm: evidence.curve(HEAVINESS, arm=arm, seed=0).values[0] for arm in LAWS}
    met = [arm for arm in LAWS if heavy[arm] > QUARTER]
    verdict = Verdict.of(
        effect=set(met) == set(HEAVY) and all(falls[arm] for arm in met),
        control=any(falls[arm] for arm in LIGHT),
    )
    numbers = {f"{arm} heaviness": [heavy[arm]] for arm in LAWS}
    numbers |= {f"{arm} meets a line twice": [float(falls[arm])] for arm in LAWS}
    return Finding.over_seeds(verdict, numbers, "Gaussian clusters are not among them (E19).")


def ratios(evidence: Evidence) -> Finding:
    found = evidence.curve(RATIO, arm="mixture", seed=0).values
    inside = (found > 0.5) & (found < 2)
    numbers = {"lowest": [found.min()], "highest": [found.max()], "inside": [inside.mean()]}
    verdict = Verdict.of(effect=bool(np.all(inside)), control=False)
    return Finding.over_seeds(verdict, numbers, "E18.")


def lemma7(evidence: Evidence) -> Finding:
    y, value = evidence.curve(LEMMA7, arm="lemma7", seed=0, kind=Kind.MEASURED)
    closed = evidence.curve(LEMMA7, arm="lemma7", seed=0, kind=Kind.PREDICTED).values
    bare = evidence.curve(BARE, arm="lemma7", seed=0).values
    top = int(value.argmax())
    error = float(np.abs(value - closed).max())
    effect = value.min() >= 0 and value[top] <= 1 and error < NEAR and abs(value[top] - TOP) < NEAR
    numbers = {"highest": [value[top]], "at y": [y[top]], "closed form error": [error]}
    numbers |= {"highest without factor": [bare.max()]}
    verdict = Verdict.of(effect=bool(effect), control=bool(bare.max() <= 1))
    return Finding.over_seeds(verdict, numbers, "The bound 1 is not tight.")


def _role(arm: str) -> Kind:
    return Kind.MEASURED if arm in LIGHT else Kind.CONTROL


def _curve(evidence: Evidence, arm: str) -> Curve:
    return evidence.curve(G, arm=arm, seed=0)


def _least_bend(curve: Curve, *, left: bool) -> float:
    """Smallest relative change of slope from one chord to the next, on one side of y = 1/2."""
    y, value = curve
    side = y < 0.5 if left else y >= 0.5
    chords = np.diff(value[side]) / np.diff(y[side])
    return float((np.diff(chords) / chords[1:]).min())


def _falls(curve: Curve) -> bool:
    """Whether G(y) / y falls somewhere: only then a line through the origin meets G twice."""
    level = curve.values / curve.steps
    return bool(np.any(np.diff(level) < -ROUNDING * level[1:]))


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """G, the level G / y that lines meet, its slope, Lemma 7's G, Eqn. 58, Lemma 4's ratios."""
    level, off = {}, {}
    shown = {arm: _curve(evidence, arm) for arm in LAWS}
    for arm, (y, value) in shown.items():
        found = evidence.curve(SLOPE, arm=arm, seed=0, kind=_role(arm))
        stated = evidence.curve(SLOPE, arm=arm, seed=0, kind=Kind.PREDICTED).values
        level[arm] = Curve(y, value / y)
        off[arm] = Curve(found.steps, np.abs(found.values / stated - 1))
    bar = Reference(label=f"bar, {EQUAL:g}", low=EQUAL)
    slopes = _over_y("Slope of G against theta_1 / p_n", "relative difference", off)
    return (
        replace(_over_y("Figure 9, G cut off at 3", "G(y)", shown), value_range=(0.0, 3.0)),
        replace(
            _over_y("Where it falls, a line meets G twice", "G(y) / y, cut off at 3", level),
            value_range=(0.0, 3.0),
        ),
        replace(slopes, log_value=True, references=(bar,)),
        _lemma7_panel(evidence),
        Panel(
            title="Eqn. 58 asks for 1/4 (hollow: heavy tails)",
            value_label="theta_2(0) p_n(0)",
            dots=tuple(
                dot(
                    _LABELS[arm],
                    evidence.curve(HEAVINESS, arm=arm, seed=0).values,
                    hollow=arm in HEAVY,
                )
                for arm in LAWS
            ),
            references=(Reference(label="1/4", low=QUARTER),),
        ),
        _ratio_panel(evidence),
    )


_LABELS = {
    "normal": "normal",
    "logistic": "logistic",
    "mixture": "mixture of normals",
    "student": "Student, t(1.5)",
}


def _over_y(title: str, label: str, curves: Mapping[str, Curve]) -> Panel:
    lines = tuple(curve(_LABELS[a], *c, dashed=a in HEAVY) for a, c in curves.items())
    return Panel(
        title=f"{title} (dashed: heavy tails)",
        value_label=label,
        time_label="y = theta_1",
        time_range=(0.0, 1.0),
        lines=lines,
    )


def _lemma7_panel(evidence: Evidence) -> Panel:
    shown = (
        ("quadrature", LEMMA7, Kind.MEASURED),
        ("closed form", LEMMA7, Kind.PREDICTED),
        ("without exp(-y^2 / 2)", BARE, Kind.CONTROL),
    )
    return Panel(
        title="Lemma 7, another G: below 1; control cut off at 1.6",
        value_label="G(y)",
        time_label="y",
        lines=tuple(
            line(evidence, metric, "lemma7", label=label, kind=kind, dashed=kind != Kind.MEASURED)
            for label, metric, kind in shown
        ),
        value_range=(0.0, 1.6),
        references=(Reference(label="bound, 1", low=1.0),),
    )


def _ratio_panel(evidence: Evidence) -> Panel:
    found = np.sort(evidence.curve(RATIO, arm="mixture", seed=0).values)
    rank = np.arange(1.0, len(found) + 1)
    return Panel(
        title="Clusters that balance: Lemma 4 has 1/2 < a_- / a_+ < 2",
        value_label="a_- / a_+",
        time_label="pair of intersections, in order of its ratio",
        log_value=True,
        lines=(curve("mixture of normals", rank, found, points=True),),
        references=(Reference(label="1/2 to 2", low=0.5, high=2.0),),
    )


EXPERIMENT = Experiment(
    title="The function G(y) of Lemma 4, which decides whether two clusters can balance.",
    paper=PaperRef(item="Figure 9", equations=(57, 58)),
    version=1,
    presets={"ci": Config(points=801), "paper": Config(points=8001)},
    run=run,
    figure=figure,
    seeds=1,
    cost="ci 1 s, paper 2 s, one core",
    claims=(
        Claim(
            name="slope",
            says="Figure 9: G grows with slope theta_1 / p_n.",
            control="none: an identity, judged by central differences",
            rule=f"slope positive and within {EQUAL:g} of theta_1 / p_n, four laws",
            decide=slope,
        ),
        Claim(
            name="convex",
            says="Appendix A.4: G(y) is convex for y > 1/2.",
            control="y < 1/2 for the heavy-tailed mixture, where it is not",
            rule=f"slopes of successive chords fall by < {ROUNDING:g} for y > 1/2, four laws",
            decide=convex,
        ),
        Claim(
            name="eqn58",
            says="Eqn. 58: theta_2(0) p_n(0) >= 1/4 suffices for a line that meets G twice.",
            control="normal and logistic clusters, which miss Eqn. 58: G / y never falls",
            rule="G / y falls somewhere for the mixture and t(1.5), and for no control",
            decide=eqn58,
        ),
        Claim(
            name="ratios",
            says="Lemma 4: two clusters that balance have a_- / a_+ in (1/2, 1) or (1, 2).",
            control="none: a counterexample decides",
            rule="every pair of intersections with a line, for the heavy-tailed mixture",
            decide=ratios,
        ),
        Claim(
            name="lemma7",
            says="Lemma 7 (another G): 0 <= G(y) <= 1 for y >= 0.",
            control="the integral without its factor exp(-y^2 / 2), which passes 1",
            rule=f"quadrature in [0, 1], largest {TOP:.6f}, closed form within {NEAR:g}",
            decide=lemma7,
        ),
    ),
    deviations=(
        "The figure names no p_n; we take normal, logistic, .9 N(0, .3^2) + .1 N(0, 3^2), t(1.5).",
        "Lemma 4's y = theta_1^-1(r) is read as y = theta_1(r), the only reading that fits (E18).",
    ),
)

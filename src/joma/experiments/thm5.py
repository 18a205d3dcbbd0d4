"""Theorem 5: how often two leaves of a latent tree occur together, sampled and by formula."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from joma._core.typing import Array, Form
from joma.experiments._figure import dot, range_over
from joma.experiments.base import Claim, Evidence, Experiment, Finding, PaperRef, Verdict, records
from joma.records.schema import Bound, Kind
from joma.report.panels import Panel, Reference
from joma.theory import hblt

TOGETHER, PAIRS = "cooccurrence", "pairs"
SIGMAS = 3.0


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Two leaves of HBLT: the edges they share below the top latent, and those of each leaf."""

    trunk: tuple[float, ...]
    left: tuple[float, ...]
    right: tuple[float, ...]
    zero_given_class: tuple[float, ...]
    prior: tuple[float, ...]

    def rho_0(self, form: Form) -> float:
        """Polarity of the top latent."""
        return hblt.root_polarity(np.array(self.zero_given_class), np.array(self.prior), form=form)

    def formula(self, form: Form) -> float:
        """P[y_l = 1 | y_m = 1] for the left leaf given the right one."""
        left, right, trunk = (hblt.path_polarity(p) for p in (self.left, self.right, self.trunk))
        return hblt.cooccurrence_of_paths(left, right, trunk * self.rho_0(form))


def even(rho: float, levels: int, ancestor: int, zero: tuple[float, ...]) -> Tree:
    """Equal edges, as in Theorem 5, and classes of equal probability."""
    limb = (rho,) * ancestor
    prior = (1 / len(zero),) * len(zero)
    trunk = (rho,) * (levels - 1 - ancestor)
    return Tree(trunk=trunk, left=limb, right=limb, zero_given_class=zero, prior=prior)


TREES = (
    even(0.8, 4, 1, (0.9, 0.5)),
    even(0.8, 4, 3, (0.9, 0.5)),
    even(0.9, 6, 2, (0.95, 0.6, 0.7)),
    even(0.6, 3, 1, (0.2, 0.9)),
    Tree(
        trunk=(0.9,),
        left=(0.6, 0.7),
        right=(-0.4,),
        zero_given_class=(0.9, 0.3),
        prior=(0.7, 0.3),
    ),
    Tree(
        trunk=(0.95, 0.7),
        left=(0.9,),
        right=(0.8, 0.5, 0.9),
        zero_given_class=(0.8, 0.4, 0.6),
        prior=(0.5, 0.3, 0.2),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Six trees; the last two have a polarity of its own on every edge."""

    samples: int
    trees: tuple[Tree, ...] = TREES


def run(config: Config, seed: int) -> Iterator[pa.Table]:
    """Step is the number of the tree."""
    rng = np.random.default_rng(seed)
    step = np.arange(len(config.trees), dtype=float)
    share, pairs = np.array([_sampled(rng, tree, config.samples) for tree in config.trees]).T
    half = 1.96 * np.sqrt(share * (1 - share) / pairs)
    yield records(
        "sampler",
        seed,
        metric=TOGETHER,
        step=step,
        value=share,
        lower=share - half,
        upper=share + half,
        bound=Bound.CI95.value,
    )
    yield records("sampler", seed, metric=PAIRS, step=step, value=pairs)
    yield _by_formula("corrected", seed, Kind.PREDICTED, config.trees)
    yield _by_formula("printed", seed, Kind.CONTROL, config.trees)


def _by_formula(form: Form, seed: int, kind: Kind, trees: tuple[Tree, ...]) -> pa.Table:
    step = np.arange(len(trees), dtype=float)
    value = np.array([tree.formula(form) for tree in trees])
    return records(form, seed, kind=kind, metric=TOGETHER, step=step, value=value)


def _sampled(rng: np.random.Generator, tree: Tree, samples: int) -> tuple[float, float]:
    """Share of y_l = 1 among the samples with y_m = 1, and their number."""
    zero = np.array(tree.zero_given_class)[rng.choice(len(tree.prior), samples, p=tree.prior)]
    latent = _copied(rng, rng.random(samples) >= zero, tree.trunk)
    left, right = (_copied(rng, latent, path) for path in (tree.left, tree.right))
    return float(left[right].mean()), float(right.sum())


def _copied(
    rng: np.random.Generator, bits: Bool[Array, " samples"], path: tuple[float, ...]
) -> Bool[Array, " samples"]:
    for rho in path:
        bits = bits ^ (rng.random(len(bits)) < (1 - rho) / 2)
    return bits


def formula_holds(evidence: Evidence) -> Finding:
    corrected, printed = (_sigmas(evidence, form) for form in ("corrected", "printed"))
    verdict = Verdict.of(
        effect=bool(np.all(corrected < SIGMAS)), control=bool(np.any(printed < SIGMAS))
    )
    return _finding(verdict, evidence, {"sigmas": corrected, "printed": printed})


def printed_holds(evidence: Evidence) -> Finding:
    corrected, printed = (_sigmas(evidence, form) for form in ("corrected", "printed"))
    verdict = Verdict.of(effect=bool(np.all(printed < SIGMAS)), control=False)
    numbers = {"sigmas": printed, "corrected": corrected}
    return _finding(verdict, evidence, numbers, "rho_0 is 2 P - 1, not P (E10).")


def _finding(
    verdict: Verdict, evidence: Evidence, numbers: dict[str, Array], note: str = ""
) -> Finding:
    return Finding(
        verdict=verdict,
        numbers={name: float(np.median(v)) for name, v in numbers.items()},
        spread={name: (float(v.min()), float(v.max())) for name, v in numbers.items()},
        seeds=len(evidence.seeds),
        note=f"Median and range over {len(TREES)} trees, seeds pooled. {note}".strip(),
    )


def _sigmas(evidence: Evidence, form: Form) -> Array:
    """Distance of the formula from the pooled samples, in standard errors, tree by tree."""
    share = np.stack([c.values for c in evidence.curves(TOGETHER, arm="sampler")])
    pairs = np.stack([c.values for c in evidence.curves(PAIRS, arm="sampler")])
    pooled = (share * pairs).sum(0) / pairs.sum(0)
    p = evidence.curves(TOGETHER, arm=form)[0].values
    return np.asarray(np.abs(pooled - p) / np.sqrt(p * (1 - p) / pairs.sum(0)))


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Sampler and both formulas, tree by tree, and their distance in standard errors."""
    forms: tuple[tuple[Form, str], ...] = (
        ("corrected", "corrected rho_0"),
        ("printed", "printed rho_0"),
    )
    sampled = np.array([c.values for c in evidence.curves(TOGETHER, arm="sampler")])
    names = [_label(i, tree) for i, tree in enumerate(TREES, 1)]
    shares, away = [], []
    for form, series in forms:
        stated = evidence.curves(TOGETHER, arm=form)[0].values
        for name, value, sigmas in zip(names, stated, _sigmas(evidence, form), strict=True):
            shares.append(dot(name, [value], series=series, hollow=True))
            away.append(dot(name, [sigmas], series=series, hollow=True))
    shares += [dot(n, v, series="sampler") for n, v in zip(names, sampled.T, strict=True)]
    return (
        Panel(
            title=f"Two leaves; {range_over(evidence)}",
            value_label="P[y_l = 1 | y_m = 1]",
            dots=tuple(shares),
        ),
        Panel(
            title="Formula against the sampler, seeds pooled",
            value_label="distance (standard errors)",
            dots=tuple(away),
            references=(Reference(label=f"bar, {SIGMAS:g}", low=SIGMAS),),
            log_value=True,
        ),
    )


def _label(number: int, tree: Tree) -> str:
    rho = {*tree.trunk, *tree.left, *tree.right}
    edges = f"trunk {len(tree.trunk)}, limbs {len(tree.left)} and {len(tree.right)}"
    return f"{number}: {edges}; rho " + (f"{rho.pop():g}" if len(rho) == 1 else "varies")


EXPERIMENT = Experiment(
    title="Leaves of a latent tree occur together as often as Theorem 5 says.",
    paper=PaperRef(item="Theorem 5"),
    version=1,
    presets={"ci": Config(samples=100_000), "paper": Config(samples=4_000_000)},
    run=run,
    figure=figure,
    seeds=3,
    cost="ci 1 s, paper 20 s, one core, 100 MB",
    claims=(
        Claim(
            name="cooccurrence",
            says="Theorem 5: P[y_l = 1 | y_m = 1], with rho_0 = 2 E[P(y_1 = 0)] - 1.",
            control="the formula with the printed rho_0 = E[P(y = 0)]",
            rule=f"formula within {SIGMAS:g} standard errors of the sampler on all trees; the"
            " control on none",
            decide=formula_holds,
        ),
        Claim(
            name="rho_0_as_printed",
            says="Theorem 5 as printed: the same with rho_0 = E[P(y = 0)].",
            control="the formula with rho_0 = 2 E[P(y_1 = 0)] - 1",
            rule=f"formula within {SIGMAS:g} standard errors of the sampler on all trees",
            decide=printed_holds,
        ),
    ),
    deviations=(
        "Two of the six trees have a polarity of its own on every edge; the theorem has one rho.",
        "Only the two leaves and what is above them are sampled.",
    ),
)

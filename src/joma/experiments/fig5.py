"""Section 5 and Figure 5: is a hierarchy learned from the bottom up, by attention and by units?

Theorem 5 says that tokens with a low common ancestor occur together more often. Section 5 concludes
that attention goes to them first, and that latents of level s appear in layer s. Both are measured,
on samples of HBLT(rho) and on Python source, where the syntax tree is the hierarchy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from joma.experiments import _fig5_claims as claims, _fig5_figure, _fig5_source, _fig5_trees
from joma.experiments._fig5_claims import GAIN, GAP, MOST
from joma.experiments._fig5_source import Source
from joma.experiments._fig5_task import Task, build, readings, train
from joma.experiments._fig5_trees import Trees
from joma.experiments.base import Claim, Evidence, Experiment, Finding, PaperRef, records
from joma.records.schema import Kind


@dataclass(frozen=True, kw_only=True)
class Config:
    """Models, data and length. Everything here is ours: the paper trains nothing in Section 5."""

    steps: int
    at: tuple[int, ...]
    layers: tuple[int, ...] = (2, 3)
    trees: tuple[Trees, ...] = (Trees(depth=2), Trees(depth=3))
    source: Source = field(default_factory=Source)
    tree_samples: int = 1000
    source_samples: int = 250
    tree_batch: int = 64
    source_batch: int = 16
    embed: int = 64
    rate: float = 1e-3


def run(config: Config, seed: int) -> Iterator[pa.Table]:
    """Every kind of data under every depth of the model, with ReLU and with a linear MLP."""
    for trees in config.trees:

        def grown(trees: Trees = trees) -> Task:
            return _fig5_trees.task(trees, seed, config.tree_samples, config.tree_batch)

        yield from _arms(config, f"tree{trees.depth}", grown, seed)

    def source() -> Task:
        return _fig5_source.task(config.source, seed, config.source_samples, config.source_batch)

    yield from _arms(config, "source", source, seed)


def _arms(config: Config, data: str, make: Callable[[], Task], seed: int) -> Iterator[pa.Table]:
    for layers in config.layers:
        for activation, suffix in (("relu", ""), ("linear", "_linear")):
            task = make()  # anew, so that every arm sees the same stream of batches
            kind = Kind.CONTROL if suffix else Kind.MEASURED
            arm = f"{data}_layers{layers}{suffix}"
            model = build(task, layers=layers, embed=config.embed, activation=activation, seed=seed)
            for step, loss in train(
                model, task, steps=config.steps, rate=config.rate, at=config.at
            ):
                yield records(arm, seed, kind=kind, metric="loss", step=[step], value=[loss])
                seen = readings(model, task)
                yield records(
                    arm,
                    seed,
                    kind=kind,
                    metric=[f"{r.metric}_layer{(r.layer or 0) + 1}" for r in seen],
                    layer=[r.layer for r in seen],
                    step=[step] * len(seen),
                    value=[r.value for r in seen],
                    status=[r.status for r in seen],
                )


def _claim(
    name: str, says: str, control: str, rule: str, decide: Callable[[Evidence], Finding]
) -> Claim:
    return Claim(name=name, says=says, control=control, rule=rule, decide=decide)


_TREE, _SOURCE = "sampled HBLT, trees of both depths", "Python source"
_TREES_SHUFFLED = "the same attention under a shuffled tree; the untrained model"
_LINEAR = "the same model with a linear MLP"
_ORDER = (
    "layer 1, end of training, mean over seeds: preference falls with every level of the common"
    f" ancestor and by >= {GAP} in all, for 2 and 3 layers; in no control"
)
_FIRST = (
    f"layer 1, mean over seeds: at >= {MOST:.0%} of the measured steps at which levels have come"
    f" apart by > {GAP}, the closest ancestor has gained most; shuffled: not"
)
_NONLINEAR = f"the order (falls with every level, by >= {GAP}) with ReLU; with a linear MLP nowhere"
_LAYERS = (
    "for every level that has a layer: of all layers, layer s gains most in correlation, and"
    f" >= {GAIN}"
)
_TIMES = f"latents of level s in layer s gain >= {GAIN}, and are half-way later the higher they are"

EXPERIMENT = Experiment(
    title="Whether attention and hidden units learn a hierarchy from the bottom up.",
    paper=PaperRef(item="Figure 5", equations=(8,), theorems=(5,)),
    version=1,
    presets={
        "ci": Config(
            steps=40,
            at=(0, 10, 40),
            layers=(2,),
            tree_samples=400,
            source_samples=50,
        ),
        "paper": Config(steps=600, at=(0, 10, 20, 40, 80, 120, 160, 240, 320, 400, 500, 600)),
    },
    run=run,
    seeds=3,
    cost="ci 30 s; from timed steps paper 15 min; one core",
    claims=(
        _claim(
            "tree_order",
            f"Section 5: attention prefers tokens with a close common ancestor ({_TREE}).",
            _TREES_SHUFFLED,
            _ORDER,
            claims.tree_order,
        ),
        _claim(
            "source_order",
            f"Section 5: attention prefers tokens with a close common ancestor ({_SOURCE}).",
            _TREES_SHUFFLED,
            _ORDER,
            claims.source_order,
        ),
        _claim(
            "tree_first",
            f"Section 5: it goes to the closest ancestor first ({_TREE}).",
            _TREES_SHUFFLED,
            _FIRST,
            claims.tree_first,
        ),
        _claim(
            "source_first",
            f"Section 5: it goes to the closest ancestor first ({_SOURCE}).",
            _TREES_SHUFFLED,
            _FIRST,
            claims.source_first,
        ),
        _claim(
            "tree_nonlinear",
            f"Section 5: this takes a nonlinear MLP ({_TREE}).",
            _LINEAR,
            _NONLINEAR,
            claims.tree_nonlinear,
        ),
        _claim(
            "source_nonlinear",
            f"Section 5: this takes a nonlinear MLP ({_SOURCE}).",
            _LINEAR,
            _NONLINEAR,
            claims.source_nonlinear,
        ),
        _claim(
            "tree_layers",
            f"Figure 5: latents of level s appear in layer s ({_TREE}).",
            _LINEAR,
            _LAYERS,
            claims.tree_layers,
        ),
        _claim(
            "source_layers",
            f"Figure 5: latents of level s appear in layer s ({_SOURCE}).",
            _LINEAR,
            _LAYERS,
            claims.source_layers,
        ),
        _claim(
            "tree_times",
            f"Figure 5: the lower latents appear first ({_TREE}).",
            _LINEAR,
            _TIMES,
            claims.tree_times,
        ),
        _claim(
            "source_times",
            f"Figure 5: the lower latents appear first ({_SOURCE}).",
            _LINEAR,
            _TIMES,
            claims.source_times,
        ),
    ),
    deviations=(
        "Figure 5 is a drawing; the paper trains nothing for it. Data, models (width 64, hidden"
        " 256, one head, Adam 1e-3) and all rules are ours. Small models, so that every control"
        " has three seeds.",
        "A sample of a tree is the set of its tokens that are on, in random order and without"
        " positions, and a question for one token that is left out; attention of the question is"
        " measured. The paper predicts the root. At first the next token of the set was predicted,"
        " at every place; one seed of `ci` (40 steps) of that was seen, and it was dropped because"
        " there query and target do not belong together, which Section 5 takes for granted. Batch"
        " and length were then chosen by the loss, not the attention, of one arm under seed 9.",
        "In source code the next token is predicted, so there they do not either.",
        "Preference is attention relative to all pairs at the same positions of query and key,"
        " hence at the same distance; a token's attention to itself is left out.",
        "Shuffled tree: tokens keep their text and frequency and trade places in the tree, on the"
        " same trained model. In source code they trade places within their file.",
        "Source code has no levels: there the level is the number of edges from the query's node"
        " up to the common ancestor (4 stands for more), and latents are the types of a token's"
        " node, its parent and its grandparent (the ten most common), read at each token.",
        "`layers` asked only where a level gains most at first; that it gains at all was added"
        " after a `ci` run of 40 steps, before any full run.",
        "The modules differ between versions of Python, and so do the numbers on source code.",
        "Latents are scored on one half of the samples by the unit chosen on the other half;"
        " samples of source code are tokens, and tokens of one window belong together.",
    ),
    figure=_fig5_figure.figure,
)

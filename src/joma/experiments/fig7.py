"""Figure 7: attention entropy and stable rank of each layer, over the checkpoints of a suite."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joma._core.typing import Array
from joma.analysis.ceiling import causal_ceiling
from joma.analysis.curves import Curve, Shape, shape
from joma.experiments._figure import line, range_over
from joma.experiments._suite import (
    DRIFT,
    OWN,
    PYTHIA,
    SMALL,
    SUITE,
    Suite,
    by_layer,
    drifted,
    held_out,
    labelled,
    opened,
    some,
    swept,
)
from joma.experiments.base import Claim, Evidence, Experiment, Finding, PaperRef, Verdict
from joma.metrics import rank
from joma.report.panels import Line, Panel, Reference

ENTROPY, RANK = "attention_entropy", "stable_rank"
DROP, BOUNCE = 0.8, 0.05  # ours, as in fig6: of the stable rank at the start
DIP = 0.1  # nats; ours


@dataclass(frozen=True, kw_only=True)
class Config:
    """A suite and a text to read to it."""

    source: str = OWN
    """As `joma.sources.open` takes it; `own` is trained on the spot."""
    suite: Suite
    """If it is our own."""
    length: int
    """Tokens of a sequence; entropies of other lengths are not comparable."""
    sequences: int


def run(config: Config, seed: int, folder: Path) -> Iterator[pa.Table]:
    """Entropy on a text and certified stable rank of every revision, and of random drift."""
    source, losses = opened(config.source, config.suite, seed, folder)
    yield from losses
    text = held_out(config.length, config.sequences)
    found = swept(source, ("entropy", "rank"), folder / "sweep", text)
    yield labelled(found, SUITE, seed)
    yield drifted(source, [rank.PROBE], seed)


# --- claims --------------------------------------------------------------------------------------


def rank_drops(evidence: Evidence) -> Finding:
    own, control = (by_layer(evidence, RANK, arm) for arm in (SUITE, DRIFT))
    lowest = {layer: _shares(found) for layer, found in own.items()}
    drifting = np.array([_shares(found) for found in control.values()])
    numbers = {f"layer {layer}": share for layer, share in lowest.items()}
    numbers["random drift"] = drifting.min(0)
    verdict = Verdict.of(
        effect=all(np.all(share <= DROP) for share in lowest.values()),
        control=np.any(drifting <= DROP),
    )
    return Finding.over_seeds(verdict, numbers, "Lowest stable rank as a share of the untrained.")


def top_bounces(evidence: Evidence) -> Finding:
    own, control = (by_layer(evidence, RANK, arm) for arm in (SUITE, DRIFT))
    bottom, top = min(own), max(own)
    risen = {layer: _rises(own[layer]) for layer in own}
    dropped = np.all(_shares(own[top]) <= DROP) and np.all(_shares(own[bottom]) <= DROP)
    apart = np.all(risen[top] >= BOUNCE) and np.all(risen[bottom] < BOUNCE)
    verdict = Verdict.of(effect=dropped and apart, control=np.any(_rises(control[top]) >= BOUNCE))
    numbers = {f"layer {layer}": rise for layer, rise in risen.items()}
    numbers["random drift, top"] = _rises(control[top])
    numbers["lowest at step, top"] = np.array([_shape(c).dip_step for c in own[top]])
    return Finding.over_seeds(verdict, numbers, "Rise from lowest to end, in shares of the start.")


def entropy_bounces(evidence: Evidence) -> Finding:
    numbers: dict[str, list[float]] = {}
    held = []
    for layer, found in by_layer(evidence, ENTROPY, SUITE).items():
        shapes = [_shape(curve) for curve in found]
        held.append(all(s.depth >= DIP and s.end - s.dip >= DIP for s in shapes))
        numbers[f"layer {layer}: start"] = [s.start for s in shapes]
        numbers[f"layer {layer}: lowest"] = [s.dip for s in shapes]
        numbers[f"layer {layer}: end"] = [s.end for s in shapes]
    return Finding.over_seeds(
        Verdict.of(effect=any(held), control=False),
        numbers,
        "Says nothing about its cause: contrast asks which part of the model is needed.",
    )


def _shape(curve: Curve) -> Shape:
    return shape(curve.steps, curve.values)


def _shares(found: Sequence[Curve]) -> Array:
    """Lowest value as a share of the first, by seed."""
    return np.array([s.dip / s.start for s in map(_shape, found)])


def _rises(found: Sequence[Curve]) -> Array:
    """From the lowest value to the last, as a share of the first, by seed."""
    return np.array([(s.end - s.dip) / s.start for s in map(_shape, found)])


# --- figure --------------------------------------------------------------------------------------


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """Entropy with the range over heads, and stable rank with its certified bounds, by layer."""
    layers = some(list(by_layer(evidence, RANK, SUITE)))
    ranks = [_certified(evidence, layer, SUITE) for layer in layers]
    ranks += [_certified(evidence, layer, DRIFT) for layer in sorted({layers[0], layers[-1]})]
    entropies = [_heads(evidence, layer) for layer in layers]
    lengths = evidence.part(metric=ENTROPY).table["sequence_length"]
    ceiling = Reference(label="uniform attention", low=causal_ceiling(int(pc.max(lengths).as_py())))
    seeds = range_over(evidence)
    panels = [
        _panel(f"Attention entropy; {seeds}, bands: over heads", "nats", entropies, ceiling),
        _panel(
            f"Stable rank of the lower MLP matrix; {seeds}, with bounds certified to"
            f" {_widest(evidence):.0e}",
            "stable rank",
            ranks,
        ),
    ]
    if "loss" in evidence.table["metric"].to_pylist():
        losses = [line(evidence, "loss", SUITE, label="validation")]
        panels.append(_panel(f"Loss; {seeds}", "nats per token", losses))
    return tuple(panels)


def _panel(title: str, unit: str, lines: Sequence[Line], *references: Reference) -> Panel:
    return Panel(
        title=title,
        value_label=unit,
        time_label="step (0 = untrained)",
        lines=tuple(lines),
        log_time=True,
        time_range=(0, max(float(each.x[-1]) for each in lines)),
        references=references,
    )


def _certified(evidence: Evidence, layer: int, arm: str) -> Line:
    """Median over seeds, between the least lower and the greatest upper bound."""
    found = by_layer(evidence, RANK, arm)[layer]
    ends = [_ends(evidence, layer, curve) for curve in found]
    return Line(
        label=f"layer {layer}" + (", random drift" if arm == DRIFT else ""),
        x=found[0].steps,
        y=np.median([c.values for c in found], 0),
        low=np.min([low for low, _ in ends], 0),
        high=np.max([high for _, high in ends], 0),
        dashed=arm == DRIFT,
    )


def _ends(evidence: Evidence, layer: int, curve: Curve) -> tuple[Array, Array]:
    where = {} if curve.site is None else {"site": curve.site}
    part = evidence.part(metric=RANK, layer=layer, run=curve.run, **where)
    table = part.table.sort_by("step")
    low, high = (table[name].to_numpy() for name in ("lower", "upper"))
    return low, high


def _widest(evidence: Evidence) -> float:
    """Greatest distance of two bounds, as a share of the lower one."""
    table = evidence.part(metric=RANK).table
    return float(pc.max(pc.subtract(pc.divide(table["upper"], table["lower"]), 1.0)).as_py())


def _heads(evidence: Evidence, layer: int) -> Line:
    part = evidence.part(layer=layer, metric=ENTROPY)
    heads = sorted(set(part.table["head"].to_pylist()))
    each = [c.values for h in heads for c in part.part(head=h).curves(ENTROPY, arm=SUITE)]
    mean = by_layer(evidence, ENTROPY, SUITE)[layer]
    return Line(
        label=f"layer {layer}",
        x=mean[0].steps,
        y=np.median([c.values for c in mean], 0),
        low=np.min(each, 0),
        high=np.max(each, 0),
    )


EXPERIMENT = Experiment(
    title="Attention entropy and stable rank over the checkpoints of a suite.",
    paper=PaperRef(item="Figure 7"),
    version=1,
    presets={
        "ci": Config(suite=SMALL, length=32, sequences=4),
        "paper": Config(suite=Suite(), length=64, sequences=32),
        "pythia": Config(source=PYTHIA, suite=Suite(), length=128, sequences=32),
        "opt": Config(source="local:opt-2.7b", suite=Suite(), length=128, sequences=32),
    },
    run=run,
    figure=figure,
    trains=True,
    seeds={"ci": 2, "paper": 1, "pythia": 1, "opt": 1},
    cost="ci 10 s, paper about 4 min, one core; pythia loads 20 models, about 6 GB at 2 bytes a"
    " parameter, and was not run here, nor was opt",
    claims=(
        Claim(
            name="rank_drops",
            says="Figure 7: the stable rank of the lower MLP matrix drops, in every layer.",
            control="the same matrices moved as far from their start, in a random direction",
            rule=f"lowest <= {DROP} of the untrained in every layer, every seed; the control's is"
            " above in every layer",
            decide=rank_drops,
        ),
        Claim(
            name="top_bounces",
            says="Figure 7: then it bounces back in top layers, and does not in bottom layers.",
            control="the top layer's matrix moved as far in a random direction",
            rule=f"top and bottom layer drop to <= {DROP} of the untrained; from its lowest to the"
            f" end the top layer rises by >= {BOUNCE} of its start and the bottom one by less; the"
            " control rises by less",
            decide=top_bounces,
        ),
        Claim(
            name="entropy_bounces",
            says="Figure 7: attention entropy drops and bounces back, if less saliently.",
            control="none here: the arms of contrast are",
            rule=f"in some layer the mean over heads falls by >= {DIP} nats from the untrained and"
            f" ends >= {DIP} above its lowest, every seed",
            decide=entropy_bounces,
        ),
    ),
    deviations=(
        "`ci` and `paper` read a suite of our own, not Pythia or OPT, whose checkpoints need a"
        " network: a 3-layer GPT-NeoX with 2000 words on WikiText-2, one seed, 41 revisions.",
        "`pythia` names the 160m model and 20 of its 154 revisions. `opt` names a directory: OPT's"
        " checkpoints are not on the hub and must be converted to transformers' format first.",
        "transformers 5 writes safetensors only: our `.bin` revisions are written by the hub's"
        " client.",
        "The text is the start of WikiText's validation split; the paper does not name its part.",
    ),
)

"""What the records of Section 5 say: rules that were fixed before the full run."""

import re
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array
from joma.experiments.base import Evidence, Finding, Verdict

GAP = 0.1  # ours: preference for the closest over the farthest ancestor, in units of none at all
MOST = 0.9  # ours: of the steps at which levels differ
GAIN = 0.04  # ours, as for Table 1: a correlation that rose


def arms(evidence: Evidence, start: str) -> list[str]:
    """ReLU arms of one kind of data, in order."""
    runs = {str(run).split("/")[1] for run in evidence.table["run"].to_pylist()}
    return sorted(arm for arm in runs if re.fullmatch(rf"{start}\w*_layers\d", arm))


def levels(evidence: Evidence, arm: str, metric: str) -> list[int]:
    """Levels that a metric was measured at, the lowest first."""
    names = _metrics(evidence, arm)
    found = (re.fullmatch(rf"{metric}_(\d+)_layer1", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def layers(evidence: Evidence, arm: str) -> int:
    """How many layers an arm has."""
    return int(arm.removesuffix("_linear")[-1])


def lifts(evidence: Evidence, arm: str, metric: str = "lift") -> Float[Array, "seeds times levels"]:
    """Attention of the lowest layer by common ancestor, the closest first; 1 is no preference."""
    return np.stack(
        [
            np.array([c.values for c in evidence.curves(f"{metric}_{level}_layer1", arm=arm)])
            for level in levels(evidence, arm, metric)
        ],
        axis=-1,
    )


def correlations(
    evidence: Evidence, arm: str
) -> tuple[Float[Array, " times"], Float[Array, "seeds times levels layers"]]:
    """Steps, and the correlation of each level's latents with units of each layer."""
    found = [
        [
            [c.values for c in evidence.curves(f"latent_{level}_layer{layer}", arm=arm)]
            for layer in range(1, layers(evidence, arm) + 1)
        ]
        for level in levels(evidence, arm, "latent")
    ]
    steps = evidence.curves("latent_1_layer1", arm=arm)[0].steps
    return steps, np.array(found).transpose(2, 3, 0, 1)


def tree_order(evidence: Evidence) -> Finding:
    return _order(evidence, "tree")


def source_order(evidence: Evidence) -> Finding:
    return _order(evidence, "source")


def tree_first(evidence: Evidence) -> Finding:
    return _first(evidence, "tree")


def source_first(evidence: Evidence) -> Finding:
    return _first(evidence, "source")


def tree_nonlinear(evidence: Evidence) -> Finding:
    return _nonlinear(evidence, "tree")


def source_nonlinear(evidence: Evidence) -> Finding:
    return _nonlinear(evidence, "source")


def tree_layers(evidence: Evidence) -> Finding:
    return _with_linear(evidence, "tree", _each_in_its_layer)


def source_layers(evidence: Evidence) -> Finding:
    return _with_linear(evidence, "source", _each_in_its_layer)


def tree_times(evidence: Evidence) -> Finding:
    return _with_linear(evidence, "tree", _lower_first)


def source_times(evidence: Evidence) -> Finding:
    return _with_linear(evidence, "source", _lower_first)


def is_ordered(lift: Float[Array, " levels"]) -> bool:
    """Whether preference falls with every level, by `GAP` in all."""
    return bool(np.all(np.diff(lift) < 0) and lift[0] - lift[-1] >= GAP)


def share_first(lift: Float[Array, "times levels"]) -> float:
    """Of the steps at which levels have come apart, where the closest ancestor is ahead.

    `nan` if they never come apart.
    """
    change = lift - lift[0]
    apart = np.ptp(change, axis=1) > GAP
    return float((change.argmax(1) == 0)[apart].mean()) if apart.any() else float("nan")


def half_time(steps: Float[Array, " times"], curve: Float[Array, " times"]) -> float:
    """First step with half of the final gain; `nan` if the curve gained less than `GAIN`."""
    gain = curve - curve[0]
    return float(steps[(gain >= gain[-1] / 2).argmax()]) if gain[-1] >= GAIN else float("nan")


def _order(evidence: Evidence, start: str) -> Finding:
    chosen = arms(evidence, start)
    trained = [lifts(evidence, arm) for arm in chosen]
    shuffled = [lifts(evidence, arm, "shuffled_lift") for arm in chosen]
    verdict = Verdict.of(
        effect=all(is_ordered(t[:, -1].mean(0)) for t in trained),
        control=any(is_ordered(s[:, -1].mean(0)) for s in shuffled)
        or any(is_ordered(t[:, 0].mean(0)) for t in trained),
    )
    numbers = {}
    for arm, t, s in zip(chosen, trained, shuffled, strict=True):
        for level, value in zip(levels(evidence, arm, "lift"), t[:, -1].T, strict=True):
            numbers[f"{arm}, ancestor {level}"] = value
        numbers[f"{arm}, gap untrained"] = t[:, 0, 0] - t[:, 0, -1]
        numbers[f"{arm}, gap shuffled"] = s[:, -1, 0] - s[:, -1, -1]
    return Finding.over_seeds(verdict, numbers)


def _first(evidence: Evidence, start: str) -> Finding:
    chosen = arms(evidence, start)
    share = {arm: share_first(lifts(evidence, arm).mean(0)) for arm in chosen}
    other = {
        f"{arm}, shuffled": share_first(lifts(evidence, arm, "shuffled_lift").mean(0))
        for arm in chosen
    }
    verdict = Verdict.of(
        effect=all(value >= MOST for value in share.values()),
        control=any(value >= MOST for value in other.values()),
    )
    note = "Mean over seeds; nan where levels never come apart."
    numbers = {name: [value] for name, value in {**share, **other}.items()}
    return _counted(evidence, chosen, Finding.over_seeds(verdict, numbers, note))


def _nonlinear(evidence: Evidence, start: str) -> Finding:
    chosen = arms(evidence, start)
    relu = {arm: lifts(evidence, arm)[:, -1] for arm in chosen}
    linear = {arm: lifts(evidence, f"{arm}_linear")[:, -1] for arm in chosen}
    verdict = Verdict.of(
        effect=all(is_ordered(end.mean(0)) for end in relu.values()),
        control=any(is_ordered(end.mean(0)) for end in linear.values()),
    )
    numbers = {f"{arm}, gap": end[:, 0] - end[:, -1] for arm, end in relu.items()}
    numbers |= {f"{arm}, gap linear": end[:, 0] - end[:, -1] for arm, end in linear.items()}
    return Finding.over_seeds(verdict, numbers)


def _with_linear(
    evidence: Evidence, start: str, rule: Callable[[Evidence, str], tuple[bool, dict[str, float]]]
) -> Finding:
    chosen = arms(evidence, start)
    relu = {arm: rule(evidence, arm) for arm in chosen}
    linear = {f"{arm}_linear": rule(evidence, f"{arm}_linear") for arm in chosen}
    verdict = Verdict.of(
        effect=all(holds for holds, _ in relu.values()),
        control=all(holds for holds, _ in linear.values()),
    )
    numbers = {
        f"{arm}, {name}": [value]
        for arm, (_, found) in {**relu, **linear}.items()
        for name, value in found.items()
    }
    finding = Finding.over_seeds(verdict, numbers, "Of the mean over seeds.")
    return _counted(evidence, chosen, finding)


def _each_in_its_layer(evidence: Evidence, arm: str) -> tuple[bool, dict[str, float]]:
    """Whether the latents of level s gain, and most in layer s; the layer in which they do."""
    _, curves = correlations(evidence, arm)
    mean = curves.mean(0)
    gain = mean[-1] - mean[0]  # [levels, layers]
    both = min(gain.shape)
    best = gain[:both].argmax(1) + 1
    found = {f"level {s} gains most in layer": float(layer) for s, layer in enumerate(best, 1)}
    found |= {f"level {s} gain in layer {s}": float(gain[s - 1, s - 1]) for s in range(1, both + 1)}
    rises = np.all(gain.diagonal() >= GAIN)
    return bool(rises and np.all(best == np.arange(1, both + 1))), found


def _lower_first(evidence: Evidence, arm: str) -> tuple[bool, dict[str, float]]:
    """Whether latents of level s in layer s rise, the higher the later; half-way steps."""
    steps, curves = correlations(evidence, arm)
    mean = curves.mean(0)
    times = [half_time(steps, mean[:, s, s]) for s in range(min(mean.shape[1:]))]
    found = {f"level {s} half-way at": time for s, time in enumerate(times, 1)}
    return bool(np.all(np.diff(times) >= 0) and times[-1] > times[0]), found


def _counted(evidence: Evidence, chosen: list[str], finding: Finding) -> Finding:
    """The finding with the number of seeds that its means are over."""
    seeds = len(evidence.curves("lift_1_layer1", arm=chosen[0]))
    return Finding(
        verdict=finding.verdict,
        numbers=finding.numbers,
        spread=finding.spread,
        seeds=seeds,
        note=finding.note,
    )


def _metrics(evidence: Evidence, arm: str) -> set[str]:
    rows = zip(evidence.table["run"].to_pylist(), evidence.table["metric"].to_pylist(), strict=True)
    return {metric for run, metric in rows if run.split("/")[1] == arm}

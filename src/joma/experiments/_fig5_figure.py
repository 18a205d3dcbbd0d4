"""Section 5 as a figure: attention by common ancestor, and latents by layer, over training."""

import numpy as np

from joma.experiments._fig5_claims import arms, layers, levels
from joma.experiments.base import Evidence
from joma.report.panels import Line, Panel


def figure(evidence: Evidence) -> tuple[Panel, ...]:
    """A panel of attention for every arm, then one of latents for every arm."""
    chosen = [arm for start in ("tree", "source") for arm in arms(evidence, start)]
    return (
        *(_attention(evidence, arm) for arm in chosen),
        *(_latents(evidence, arm) for arm in chosen),
    )


def _attention(evidence: Evidence, arm: str) -> Panel:
    found = levels(evidence, arm, "lift")
    lines = [_line(evidence, arm, f"lift_{level}_layer1", f"ancestor {level}") for level in found]
    first = f"{found[0]}_layer1"
    lines += [
        _line(evidence, arm, f"shuffled_lift_{first}", "closest, shuffled tree", dashed=True),
        _line(evidence, f"{arm}_linear", f"lift_{first}", "closest, linear MLP", dashed=True),
    ]
    return Panel(
        title=f"{_name(arm)}: attention of layer 1, median and range over seeds",
        value_label="attention (1: even)",
        time_label="step",
        lines=tuple(lines),
    )


def _latents(evidence: Evidence, arm: str) -> Panel:
    both = min(layers(evidence, arm), len(levels(evidence, arm, "latent")))
    lines = []
    for s in range(1, both + 1):
        metric = f"latent_{s}_layer{s}"
        lines.append(_line(evidence, arm, metric, f"level {s} in layer {s}"))
        label = f"level {s} in layer {s}, linear MLP"
        lines.append(_line(evidence, f"{arm}_linear", metric, label, dashed=True))
    return Panel(
        title=f"{_name(arm)}: latents in hidden units, median and range over seeds",
        value_label="held-out correlation",
        time_label="step",
        lines=tuple(lines),
    )


def _line(evidence: Evidence, arm: str, metric: str, label: str, *, dashed: bool = False) -> Line:
    curves = evidence.curves(metric, arm=arm)
    values = np.array([c.values for c in curves])
    return Line(
        label=label,
        x=curves[0].steps,
        y=np.median(values, 0),
        low=values.min(0),
        high=values.max(0),
        dashed=dashed,
    )


def _name(arm: str) -> str:
    data, layers = arm.split("_")
    words = {"tree2": "Tree of depth 2", "tree3": "Tree of depth 3", "source": "Python source"}
    return f"{words[data]}, {layers[-1]} layers"

"""The ledger: every claim of the paper with its verdict, its control and how to reproduce it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joma.experiments import OUT, _runner, registry
from joma.experiments.base import Claim, Experiment, Finding

NOT_RUN = "not run yet"
NO_EXPERIMENT = "no experiment yet"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim. `verdict` is a verdict, "not run yet" or "no experiment yet"."""

    experiment: str
    claim: str
    says: str
    control: str
    rule: str = ""
    verdict: str = NO_EXPERIMENT
    finding: Finding | None = None
    preset: str = ""
    command: str = ""

    def numbers(self) -> str:
        """Medians and ranges over the seeds, in one line."""
        return "" if self.finding is None else ", ".join(_numbers(self.finding))

    def plain(self) -> dict[str, Any]:
        """For JSON, which knows no nan."""
        found = self.finding
        return {
            "experiment": self.experiment,
            "claim": self.claim,
            "says": self.says,
            "verdict": self.verdict,
            "numbers": {k: _finite(v) for k, v in found.numbers.items()} if found else {},
            "spread": (
                {k: [_finite(x) for x in v] for k, v in found.spread.items()} if found else {}
            ),
            "seeds": found.seeds if found else 0,
            "note": found.note if found else "",
            "control": self.control,
            "rule": self.rule,
            "preset": self.preset,
            "command": self.command,
        }


@dataclass(frozen=True)
class Planned:
    """A claim of the paper whose experiment is not written. It leaves when the file arrives."""

    experiment: str
    says: str
    control: str
    claim: str = field(default="")


PLANNED = (
    Planned(
        "thm1",
        "Theorem 1: the invariant holds for exp and linear attention.",
        "halving the learning rate halves the drift; the exact identity of discrete SGD",
    ),
    Planned(
        "fig2",
        "Theorem 1 for softmax, Figure 2: attention follows from the MLP weights.",
        "correlation, slope and relative error together; correlation of increments, since it is"
        " 1 at the start by construction",
    ),
    Planned(
        "thm3",
        "Theorem 3: critical points and dynamics of a nonlinear node.",
        "finite-difference Jacobian; heavy-tailed clusters",
    ),
    Planned(
        "fig3",
        "Figure 3: some components grow, the rest saturate; attention becomes sparse.",
        "smooth against random data, over seeds",
    ),
    Planned(
        "neuron",
        "Linear activation: attention gets sparser for ever; nonlinear: it bounces back.",
        "p = 1/2, other separations, a trained bias",
    ),
    Planned(
        "fig6",
        "Figure 6: attention entropy drops and bounces back on WikiText-2.",
        "the authors' three seeds",
    ),
    Planned(
        "fig6_controls",
        "Figure 6 shows the joint dynamics of MLP and attention.",
        "identity activation, no MLP, frozen MLP, dense early evaluation",
    ),
    Planned(
        "fig7",
        "Figure 7: OPT and Pythia show the pattern over their checkpoints.",
        "public checkpoints, the first one untrained",
    ),
    Planned(
        "fig8",
        "Figure 8: the pattern of the theory goes with the lowest validation loss.",
        "within one learning rate",
    ),
    Planned(
        "fig8_collapse",
        "Figure 8: a large learning rate makes attention collapse.",
        "curves of each layer",
    ),
    Planned(
        "stable_rank",
        "The stable rank of the lower MLP drops, then bounces back.",
        "longer runs, other depths",
    ),
    Planned(
        "table1_s0",
        "Table 1, s = 0: hidden nodes learn the lowest latents.",
        "an untrained model",
    ),
    Planned(
        "table1_s1",
        "Table 1, s = 1: hidden nodes learn the latents one level up.",
        "an untrained model, random units, sampled HBLT(rho < 1)",
    ),
    Planned(
        "mechanism",
        "JoMA's mechanism is at work in a real language model.",
        "value norm, token frequency, frozen MLP; hypotheses restored one by one",
    ),
    Planned(
        "stress",
        "The hypotheses of Theorem 1 are met where the paper looks at real data.",
        "softmax, Adam, LayerNorm, W_Q W_K and trained embeddings, one at a time",
    ),
)


def rows(
    out: Path = OUT, *, preset: str | None = None, names: Sequence[str] | None = None
) -> list[Row]:
    """One row per claim, from the records below `out`; the largest preset run unless one is given.

    Without `names` this is the whole ledger, with the claims that have no experiment at its end.
    """
    installed = registry.names()
    found = [row for name in names or installed for row in _of(name, out, preset)]
    if names is None:
        found += [_planned(p) for p in PLANNED if p.experiment not in installed]
    return found


def markdown(rows: Sequence[Row]) -> str:
    """The ledger as a table for a page."""
    lines = ["| claim | verdict | numbers | control | reproduce |", "|---|---|---|---|---|"]
    for row in rows:
        seeds = f" (seeds: {row.finding.seeds})" if row.finding else ""
        command = f"`{row.command}`" if row.command else "-"
        cells = (row.says, row.verdict, row.numbers() + seeds, row.control, command)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _of(name: str, out: Path, preset: str | None) -> Iterator[Row]:
    experiment: Experiment[Any] = registry.load(name)
    ready = _runner.presets_run(name, experiment, out)
    chosen = preset or (ready[0] if ready else "ci")
    if chosen in ready:
        for claim, finding in _runner.check(name, experiment, preset=chosen, out=out) or ():
            yield _row(name, claim, chosen, finding)
    else:
        for claim in experiment.claims:
            yield _row(name, claim, chosen, None)


def _row(name: str, claim: Claim, preset: str, finding: Finding | None) -> Row:
    return Row(
        experiment=name,
        claim=claim.name,
        says=claim.says,
        control=claim.control,
        rule=claim.rule,
        verdict=str(finding.verdict) if finding else NOT_RUN,
        finding=finding,
        preset=preset,
        command=f"joma run {name} --preset {preset} && joma check {name} --preset {preset}",
    )


def _planned(planned: Planned) -> Row:
    return Row(
        experiment=planned.experiment,
        claim=planned.claim,
        says=planned.says,
        control=planned.control,
    )


def _numbers(finding: Finding) -> Iterator[str]:
    for name, value in finding.numbers.items():
        low, high = (f"{x:.3g}" for x in finding.spread[name])
        yield f"{name} {value:.3g}" + (f" [{low}, {high}]" if low != high else "")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

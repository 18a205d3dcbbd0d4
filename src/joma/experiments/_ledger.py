"""The ledger: every claim of the paper with its verdict, its control and how to reproduce it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joma.experiments import OUT, _runner, registry
from joma.experiments.base import Claim, Experiment, Finding

NOT_RUN = "not run yet"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim. `verdict` is a verdict, or "not run yet"."""

    experiment: str
    claim: str
    says: str
    control: str
    rule: str = ""
    verdict: str = NOT_RUN
    finding: Finding | None = None
    preset: str = ""
    command: str = ""

    def numbers(self) -> str:
        """Medians and ranges over the seeds, in one line."""
        return "" if self.finding is None else "; ".join(_numbers(self.finding))

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


def rows(
    out: Path = OUT, *, preset: str | None = None, names: Sequence[str] | None = None
) -> list[Row]:
    """One row per claim, from the records below `out`; the largest preset run unless one is given.

    Without `names` this is the whole ledger.
    """
    return [row for name in names or registry.names() for row in _of(name, out, preset)]


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


def _numbers(finding: Finding) -> Iterator[str]:
    for name, value in finding.numbers.items():
        low, high = (short(x) for x in finding.spread[name])
        yield f"{name} {short(value)}" + (f" [{low}, {high}]" if low != high else "")


def short(value: float) -> str:
    """Three digits; steps and other counts whole."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

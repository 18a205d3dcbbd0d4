"""Puts numbers, verdicts and figures of `results/` into pages, so that none is typed by hand.

A page below `docs/results/` is copied to `reference/generated/` with these replaced:

    {{fig6: dip_and_bounce}}            the verdict of a claim
    {{fig6: dip_and_bounce: lowest}}    a number of its finding, with the range over seeds
    {{figure: fig6}}                    the figure of an experiment
    {{command: fig6}}                   how to run it
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from joma import experiments
from joma.experiments import _figure
from joma.experiments.base import Finding
from joma.report import plot

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGES = Path(__file__).resolve().parent / "results"
NOT_RUN = "not run yet"


def pages(folder: Path) -> dict[str, str]:
    """Every page with its numbers filled in; figures are written to `folder`."""
    return {
        page.name: re.sub(
            r"\{\{([^{}]+)\}\}", lambda found: _value(found[1], folder), page.read_text()
        )
        for page in sorted(PAGES.glob("*.md"))
    }


def _value(words: str, folder: Path) -> str:
    kind, name, *number = words.split(": ", 2)
    if kind == "figure":
        return _drawn(name, folder)
    if kind == "command":
        return f"`joma run {name} --preset {_preset(name) or 'ci'}`"
    findings = _findings(kind)
    if findings is None:
        return NOT_RUN
    if name not in findings:
        raise KeyError(f"{kind} has no claim {name!r}; it has {', '.join(findings)}.")
    return _number(findings[name], number[0]) if number else f"**{findings[name].verdict}**"


def _number(finding: Finding, name: str) -> str:
    if name == "seeds":
        return str(finding.seeds)
    if name == "note":
        return finding.note
    if name not in finding.numbers:
        raise KeyError(f"No number {name!r}; there are: {', '.join(finding.numbers)}.")
    low, high = (experiments._ledger.short(x) for x in finding.spread[name])
    middle = experiments._ledger.short(finding.numbers[name])
    return middle if low == high else f"{middle} [{low}, {high}]"


@cache
def _experiment(name: str) -> Any:
    return experiments.registry.load(name)


@cache
def _preset(name: str) -> str | None:
    """The largest preset that `results/` has."""
    return next(iter(experiments._runner.presets_run(name, _experiment(name), RESULTS)), None)


@cache
def _findings(name: str) -> dict[str, Finding] | None:
    preset = _preset(name)
    if preset is None:
        return None
    decided = experiments._runner.check(name, _experiment(name), preset=preset, out=RESULTS)
    return {claim.name: finding for claim, finding in decided or ()}


def _drawn(name: str, folder: Path) -> str:
    preset, experiment = _preset(name), _experiment(name)
    if preset is None:
        return f"*The figure of `{name}` is not drawn: {NOT_RUN}.*"
    seen = experiments._runner.evidence(name, experiment, preset=preset, out=RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    plot.save(_figure.panels(experiment, seen), folder / f"{name}.png", title=experiment.title)
    return f"![{experiment.title}]({name}.png)"

"""`joma show`: what an experiment does, what it costs and what it claims. Runs nothing."""

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joma.experiments import registry

if TYPE_CHECKING:
    from joma.experiments.base import Experiment


def show(
    name: Annotated[str, typer.Argument(help="As listed by: joma ls experiments.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what an experiment does, what it costs and when its claims hold.

    Example: joma show fig4
    """
    experiment = registry.load(name)
    if as_json:
        typer.echo(json.dumps(_plain(name, experiment), indent=1))
    else:
        typer.echo("\n".join(_lines(name, experiment)))


def _plain(name: str, experiment: "Experiment[Any]") -> dict[str, Any]:
    return {
        "name": name,
        "title": experiment.title,
        "paper": str(experiment.paper),
        "version": experiment.version,
        "seeds": {p: experiment.count(p) for p in experiment.presets},
        "cost": experiment.cost,
        "presets": {preset: repr(config) for preset, config in experiment.presets.items()},
        "claims": [
            {"name": c.name, "says": c.says, "control": c.control, "rule": c.rule}
            for c in experiment.claims
        ],
        "deviations": list(experiment.deviations),
    }


def _lines(name: str, experiment: "Experiment[Any]") -> Iterator[str]:
    yield f"{name}: {experiment.title}"
    yield f"paper:    {experiment.paper}"
    yield f"version:  {experiment.version}"
    yield f"seeds:    {_seeds(experiment)}"
    yield f"cost:     {experiment.cost}"
    for preset, config in experiment.presets.items():
        yield f"preset {preset}: {_brief(config)}"
    yield "\nClaims"
    for claim in experiment.claims:
        yield f"  {claim.name}: {claim.says}"
        yield f"    holds if: {claim.rule}"
        yield f"    control:  {claim.control}"
    if experiment.deviations:
        yield "\nWhere we differ from the paper or its code"
        yield from (f"  {line}" for line in experiment.deviations)
    yield f"\nRun it: joma run {name}; then: joma check {name}"


def _seeds(experiment: "Experiment[Any]") -> str:
    """One number, or one for each preset."""
    counts = {preset: experiment.count(preset) for preset in experiment.presets}
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return ", ".join(f"{count} ({preset})" for preset, count in counts.items())


def _brief(config: Any) -> str:
    """A config in one line: long sequences by their length."""
    if not dataclasses.is_dataclass(config):
        return str(config)
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return ", ".join(
        f"{name} = {len(value)} items"
        if len(str(value)) > 80 and isinstance(value, tuple)
        else f"{name} = {value}"
        for name, value in values.items()
    )

"""`joma plot`: the figure of an experiment, drawn from its records."""

import importlib
import json
from pathlib import Path
from typing import Annotated

import typer

from joma import experiments
from joma._core.errors import JomaError


def plot(
    name: Annotated[str, typer.Argument(help="As listed by: joma ls experiments.")],
    preset: Annotated[
        str | None, typer.Option(help="The largest that was run, if absent.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = experiments.OUT,
    to: Annotated[
        Path | None, typer.Option(help="File to write: .png, .pdf or .svg.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw what an experiment measured, with the range over its seeds.

    Example: joma run fig4 && joma plot fig4
    """
    experiment = experiments.registry.load(name)
    ready = experiments._runner.presets_run(name, experiment, out)
    chosen = preset or next(iter(ready), None)
    if chosen not in ready:
        raise JomaError(
            f"No complete records of {name} in {out}. Run it first: joma run {name} --out {out}"
        )
    drawing = importlib.import_module("joma.report.plot")  # needs joma[plot]
    figures = importlib.import_module("joma.experiments._figure")
    evidence = experiments._runner.evidence(name, experiment, preset=chosen, out=out)
    path = to or Path(f"{name}.png")
    drawing.save(figures.panels(experiment, evidence), path, title=experiment.title)
    typer.echo(json.dumps({"figure": str(path), "preset": chosen}) if as_json else str(path))

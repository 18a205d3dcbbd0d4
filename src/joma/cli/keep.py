"""`joma keep`: the records of an experiment as one small file, to commit beside the code."""

import importlib
import json
from pathlib import Path
from typing import Annotated

import typer

from joma import experiments
from joma._core.errors import JomaError


def keep(
    name: Annotated[str, typer.Argument(help="As listed by: joma ls experiments.")],
    preset: Annotated[str, typer.Option(help="ci (small) or paper.")] = "ci",
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = experiments.OUT,
    to: Annotated[Path, typer.Option(help="Folder to keep them in.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Keep the complete seeds of an experiment as one Parquet file, with their provenance.

    What is kept can be checked and plotted as a run is: joma check fig4 --out results

    Example: joma run fig4 && joma keep fig4
    """
    kept = importlib.import_module("joma.experiments._kept")
    experiment = experiments.registry.load(name)
    seen = experiments._runner.evidence(name, experiment, preset=preset, out=out)
    if seen is None:
        raise JomaError(
            f"No complete records of {name} in {out}. "
            f"Run it first: joma run {name} --preset {preset} --out {out}"
        )
    place = experiments._runner.place(to, name, preset, experiment)
    noted = experiments._runner.provenance(name, experiment, preset=preset, out=out)
    target = kept.file_of(place)
    kept.save(seen.table, noted, target)
    typer.echo(json.dumps({"file": str(target)}) if as_json else str(target))

"""`joma run`: run experiments into records. What is there already is not run again."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from joma import experiments
from joma._core.errors import MissingDataError


def run(
    name: Annotated[str, typer.Argument(help="As listed by: joma ls experiments; or all.")],
    preset: Annotated[str, typer.Option(help="ci (small) or paper.")] = "ci",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many; each experiment has a default.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = experiments.OUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run an experiment, or all of them. An interrupted run goes on where it was.

    Whether its claims hold is the next question: joma check.

    Example: joma run fig4
    """
    names = experiments.registry.names() if name == "all" else [name]
    loaded = {n: experiments.registry.load(n) for n in names}  # before anything runs
    told: list[dict[str, str | None]] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        for each, experiment in loaded.items():
            bar = progress.add_task(each, total=seeds or experiment.count(preset))
            try:
                store = experiments._runner.run(
                    each,
                    experiment,
                    preset=preset,
                    seeds=seeds,
                    out=out,
                    finished=partial(_advance, progress, bar),
                )
            except MissingDataError as error:
                if name != "all":
                    raise
                typer.echo(f"{each}: left out. {error}", err=True)
                told.append({"experiment": each, "store": None, "left_out": str(error)})
            else:
                told.append({"experiment": each, "store": str(store.path), "left_out": None})
                if not as_json:
                    typer.echo(f"{each}: {store.path}")
    if as_json:
        typer.echo(json.dumps(told, indent=1))


def _advance(progress: Progress, bar: TaskID, _: int) -> None:
    progress.advance(bar)

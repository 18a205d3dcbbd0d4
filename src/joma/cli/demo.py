"""`joma demo`: a few trainings in seconds, and a page about them."""

import dataclasses
import importlib
import json
import logging
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from joma._core.errors import JomaError

PAGE, RECORDS = "joma-demo.html", "joma-demo-records"


def demo(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train layers of Eqn. 1 and two small language models; write a page about them.

    One of the models has a learning rate too large for it. Needs no network: the text is the
    source of the Python standard library.

    Example: joma demo
    """
    page = importlib.import_module("joma.report.page")  # needs joma[report]; said before training
    runs = importlib.import_module("joma.experiments._demo")
    records = folder / RECORDS
    if records.exists():
        raise JomaError(
            f"{records} is there already. Delete it, or say where to write: joma demo FOLDER"
        )
    start = time.perf_counter()
    with Console(stderr=True).status("training") as status:
        logging.getLogger("joma.monitor").setLevel(logging.ERROR)  # alerts are told below
        found = runs.run(records, lambda name: status.update(f"{name} is trained"))
    target = folder / PAGE
    read = [importlib.import_module("joma.report.material").material(records)]
    target.write_text(page.page(read, theory=True), encoding="utf-8", newline="\n")
    if as_json:
        places = {"page": str(target), "records": str(records)}
        typer.echo(json.dumps(dataclasses.asdict(found) | places, indent=1))
        return
    typer.echo(found.invariant)
    typer.echo("\nAttention entropy, in nats:")
    typer.echo("\n".join(f"  {line}" for line in found.shapes))
    typer.echo("\nWhat the monitor's rule says at the end:")
    typer.echo("\n".join(f"  {line}" for line in found.verdicts))
    typer.echo(
        f"\nLook at {target}: the verdicts first, then under “Run by run” the loss above the maps "
        "of entropy\nand largest logit, layer by layer; under “Theory beside measurement” the "
        f"layer of Eqn. 1.\nRecords: {records}. It took {time.perf_counter() - start:.0f} s."
    )

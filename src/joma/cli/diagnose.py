"""`joma diagnose`: what a folder of records says about the attention of its runs."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import joma
from joma import analysis
from joma._core.errors import JomaError

if TYPE_CHECKING:
    from joma.analysis.diagnosis import Diagnosis


def diagnose(
    folder: Annotated[Path, typer.Argument(help="A records store, as a monitor writes it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say of each run whether its attention collapses or its logits explode.

    An alarm is a result, not an error: the exit code is 0.

    Example: joma diagnose joma-records
    """
    store = joma.load(folder)  # Arrow is loaded here and below, not when the command starts
    rule, names = analysis.diagnosis, analysis.series
    rows = store.read(metric=(*names.ENTROPIES, names.LOGIT, names.LOSS))
    found: tuple[Diagnosis, ...] = rule.diagnose(rows, rule.facts_of(store))
    if not found:
        raise JomaError(
            f"No run in {folder} has attention entropies to diagnose. "
            f"Record {' or '.join(names.ENTROPIES)}, and the loss."
        )
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
    else:
        typer.echo("\n".join(_line(one) for one in found))


def _line(one: "Diagnosis") -> str:
    where = "" if one.layer is None else f", layer {one.layer}, since step {one.since:g}"
    return f"{one.run}: {one.verdict.value}{where} (step {one.step:g})\n  {one.message}"

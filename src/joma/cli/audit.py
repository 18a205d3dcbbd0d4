"""`joma audit`: what is wrong with a suite of checkpoints."""

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from joma.cli._progress import bar
from joma.cli.sweep import SOURCE_HELP

if TYPE_CHECKING:  # imports torch, which other verbs do without
    from joma.sweep.audit import Audit


def audit(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tensors of each file; the lower MLP matrices if absent.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the fingerprints.", show_default=False),
    ] = None,
    engine: Annotated[str, typer.Option(help="serial, process or ray.")] = "serial",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Tasks at once.", show_default=False)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look for duplicates, wrong files, jumps, gaps and damage, from partial reads.

    Exits with 1 if something is wrong, with 2 if the audit could not be made.

    Example: joma audit 'hub:EleutherAI/pythia-70m@step*'
    """
    auditing = importlib.import_module("joma.sweep.audit")
    with bar("audit") as move:
        result = auditing.audit(
            source,
            out=out,
            sample=sample,
            progress=move,
            engine=engine,
            workers=workers,
            address=address,
        )
    if as_json:
        typer.echo(json.dumps(_plain(result), indent=1))
    else:
        if result.findings:
            Console().print(_table(result))
        typer.echo(_summary(result))
    if result.findings or result.outcome.quarantined:
        raise typer.Exit(1)


def _plain(result: "Audit") -> dict[str, Any]:
    return {
        "revisions": result.revisions,
        "tensors_per_revision": result.tensors,
        "detection_probability_of_one_tensor": result.coverage,
        "bytes": result.outcome.cost.bytes,
        "findings": [
            {
                "defect": f.defect.value,
                "run": f.run,
                "revisions": list(f.revisions),
                "message": f.message,
            }
            for f in result.findings
        ],
        "quarantined": dict(result.outcome.quarantined),
    }


def _table(result: "Audit") -> Table:
    table = Table(show_lines=True)
    for title in ("defect", "run", "revisions", "what"):
        table.add_column(title)
    for f in result.findings:
        cells = (f.defect.value, f.run, ", ".join(f.revisions), f.message)
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _summary(result: "Audit") -> str:
    aside = [f"Not looked at: {task}. {why}" for task, why in result.outcome.quarantined.items()]
    told = {name for f in result.findings for name in f.revisions}
    left = [r for r in result.outcome.plan.left_out if r.name not in told]
    aside += [f"Not looked at: {r.name}. {r.problem}" for r in left]
    found = f"{len(result.findings)} findings" if result.findings else "Nothing wrong"
    line = (
        f"{found} in {result.revisions} revisions; {result.tensors} tensors of each looked at. "
        f"A wrong file or revision is always among them, one damaged tensor with probability "
        f"{result.coverage:.2g}."
    )
    return "\n".join([line, *aside])

"""`joma errata`: where the paper's print gives wrong numbers, computed now."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from joma._core.errors import UnknownNameError
from joma.theory.errata import registry
from joma.theory.errata.base import Erratum, Evidence


def errata(
    numbers: Annotated[
        list[int] | None, typer.Argument(help="Only these, e.g. 2 10.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute each erratum of the paper: the printed form, the corrected form, and a judge.

    Exits with 1 if a corrected form misses the judge or a printed form is not refuted.

    Example: joma errata 2
    """
    chosen = _chosen(numbers or [])
    quiet = as_json or not sys.stderr.isatty()
    console = Console(stderr=True)
    computed = [
        (erratum, erratum.evidence())
        for erratum in track(chosen, "Computing", console=console, disable=quiet, transient=True)
    ]
    if as_json:
        typer.echo(json.dumps([_plain(*pair) for pair in computed], indent=1))
    else:
        Console().print(_table(computed))
    if not all(_settled(evidence) for _, evidence in computed):
        raise typer.Exit(1)


def _chosen(numbers: list[int]) -> list[Erratum]:
    known = sorted((registry.load(name) for name in registry.names()), key=lambda e: e.number)
    missing = sorted(set(numbers) - {e.number for e in known})
    if missing:
        listing = ", ".join(str(e.number) for e in known)
        raise UnknownNameError(f"No erratum numbered {missing[0]}. Available: {listing}.")
    return [e for e in known if not numbers or e.number in numbers]


def _settled(evidence: Sequence[Evidence]) -> bool:
    refuted = any(e.printed_fails for e in evidence)
    return refuted and all(e.corrected_holds for e in evidence)


def _plain(erratum: Erratum, evidence: Sequence[Evidence]) -> dict[str, Any]:
    return {
        "number": erratum.number,
        "where": erratum.where,
        "printed": erratum.printed,
        "corrected": erratum.corrected,
        "settled": _settled(evidence),
        "evidence": [
            asdict(e)
            | {"printed": _finite(e.printed), "corrected": _finite(e.corrected)}
            | {"printed_fails": e.printed_fails, "corrected_holds": e.corrected_holds}
            for e in evidence
        ],
    }


def _table(computed: Sequence[tuple[Erratum, Sequence[Evidence]]]) -> Table:
    table = Table(title="Errata of arXiv:2310.00535, computed now")
    table.add_column("", justify="right")
    table.add_column("Where, what is printed, what holds, and a quantity both forms give", ratio=1)
    for name in ("printed", "corrected", "judge"):
        table.add_column(name, justify="right", no_wrap=True)
    for erratum, evidence in computed:
        table.add_row(f"E{erratum.number}", f"[bold]{escape(erratum.where)}[/bold]")
        table.add_row("", f"prints: {escape(erratum.printed)}")
        table.add_row("", f"holds:  {escape(erratum.corrected)}")
        for e in evidence:
            table.add_row(
                "",
                f"[dim]{escape(e.quantity)}[/dim]",
                _number(e.printed, agrees=not e.printed_fails),
                _number(e.corrected, agrees=e.corrected_holds),
                f"{e.truth + 0.0:.6g}",
            )
        table.add_section()
    return table


def _number(value: float, *, agrees: bool) -> str:
    text = f"{value + 0.0:.6g}"  # no minus zero
    return text if agrees else f"[red]{text} ✗[/red]"


def _finite(value: float) -> float | None:
    """JSON knows no nan: a form that gives no number is null."""
    return value if math.isfinite(value) else None

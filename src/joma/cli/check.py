"""`joma check`: decide claims from records, and print the ledger."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from joma import experiments
from joma._core.errors import JomaError

if TYPE_CHECKING:
    from joma.experiments._ledger import Row

COLOURS = {"holds": "green", "fails": "red", "not distinguishable from control": "yellow"}


def check(
    target: Annotated[
        str | None,
        typer.Argument(help="An experiment, or a folder of records.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The ledger: every claim of the paper.")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="The largest that was run, if absent.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = experiments.OUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Decide the claims of an experiment from its records, or print the ledger of all.

    A claim that fails is a result, not an error: the exit code is 0.

    Example: joma check --all
    """
    rows = _rows(target, everything, preset, out)
    if as_json:
        typer.echo(json.dumps([row.plain() for row in rows], indent=1))
    else:
        Console().print(_table(rows))


def _rows(target: str | None, everything: bool, preset: str | None, out: Path) -> "list[Row]":
    if everything == (target is not None):
        raise JomaError("Say what to check: the name of an experiment, a folder, or --all.")
    names = experiments.registry.names()
    if target is None:
        return experiments._ledger.rows(out, preset=preset)
    if target not in names and Path(target).is_dir():
        return experiments._ledger.rows(Path(target), preset=preset)
    experiment = experiments.registry.load(target)
    ready = experiments._runner.presets_run(target, experiment, out)
    if not ready or preset not in (None, *ready):
        wish = f" --preset {preset}" if preset else ""
        raise JomaError(
            f"No complete records of {target}{wish} in {out}. "
            f"Run it first: joma run {target}{wish} --out {out}"
        )
    return experiments._ledger.rows(out, preset=preset, names=[target])


def _table(rows: "Sequence[Row]") -> Table:
    table = Table(title="Claims of arXiv:2310.00535", show_lines=True)
    table.add_column("claim", ratio=4)
    table.add_column("verdict", ratio=2)
    table.add_column(escape("numbers: median [lowest, highest]"), ratio=4)
    table.add_column("control", ratio=3)
    table.add_column("reproduce", ratio=3)
    for row in rows:
        colour = COLOURS.get(row.verdict, "dim")
        seeds = f"\nSeeds: {row.finding.seeds}. {row.finding.note}" if row.finding else ""
        name = f"{row.experiment}: {row.claim}" if row.claim else row.experiment
        table.add_row(
            f"[bold]{escape(name)}[/bold]\n{escape(row.says)}",
            f"[{colour}]{row.verdict}[/{colour}]",
            escape(row.numbers() + seeds.rstrip()),
            escape(row.control),
            escape(row.command) or "-",
        )
    return table

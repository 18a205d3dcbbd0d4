"""`joma check`: decide claims from records, and print the ledger."""

import json
from collections import Counter
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
        _print(rows)


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


def _print(rows: "Sequence[Row]") -> None:
    """A block for each claim, which reads at any width, and how many have each verdict."""
    console = Console()
    for row in rows:
        colour = COLOURS.get(row.verdict, "dim")
        name = f"{row.experiment}: {row.claim}" if row.claim else row.experiment
        console.print(f"[bold]{escape(name)}[/bold]: [{colour}]{row.verdict}[/{colour}]")
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(min_width=11, no_wrap=True)
        block.add_column()
        seeds = f"{row.finding.seeds}. {row.finding.note}".rstrip() if row.finding else ""
        lines = {
            "  says": row.says,
            "  holds if": row.rule,
            "  control": row.control,
            "  numbers": row.numbers(),
            "  seeds": seeds,
            "  reproduce": row.command,
        }
        for label, text in lines.items():
            if text:
                block.add_row(label, escape(text))
        console.print(block)
        console.print()
    tally = Counter(row.verdict for row in rows)
    console.print("; ".join(f"{verdict}: {count}" for verdict, count in tally.most_common()))
    if any(row.finding for row in rows):
        console.print("Numbers are medians over seeds, with [lowest, highest].", markup=False)

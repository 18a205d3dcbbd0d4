"""`joma bench`: measure a ratio against the bare kernel, read or loop, and its bar."""

import json
import math
from typing import Annotated, Any

import typer

from joma.bench import registry
from joma.bench.base import Row


def bench(
    name: Annotated[str, typer.Argument(help="As listed by: joma ls bench.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run one benchmark and print each number beside its bar.

    Exits with 1 if a bar is missed.

    Example: joma bench records
    """
    chosen = registry.load(name)
    if not as_json:
        typer.echo(chosen.says)
    rows = []
    for row in chosen.run():
        rows.append(row)
        if not as_json:
            typer.echo(str(row))
    if as_json:
        typer.echo(json.dumps([_plain(row) for row in rows], indent=1))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


def _plain(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": row.value if math.isfinite(row.value) else None,  # JSON knows no nan
        "unit": row.unit,
        "bar": row.bar,
        "at_least": row.at_least,
        "passed": row.passed,
    }

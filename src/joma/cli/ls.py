"""`joma ls`: what there is, by name. Imports none of it."""

import json
from typing import Annotated

import typer

from joma._core.errors import UnknownNameError
from joma._core.registry import Registry, closest

ROOMS = {
    "experiments": Registry("joma.experiments", "EXPERIMENT"),
    "metrics": Registry("joma.metrics", "PROBE"),
    "architectures": Registry("joma.architectures", "ARCHITECTURE"),
    "sources": Registry("joma.sources", "SOURCE"),
    "engines": Registry("joma.sweep.engines", "ENGINE"),
    "theory": Registry("joma.theory", "PAPER"),
    "errata": Registry("joma.theory.errata", "ERRATUM"),
    "bench": Registry("joma.bench", "BENCH"),
}


def ls(
    room: Annotated[
        str | None, typer.Argument(help=f"One of: {', '.join(ROOMS)}.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what is installed, by name.

    Example: joma ls theory
    """
    if room is not None and room not in ROOMS:
        raise UnknownNameError(f"Nothing is listed under {room!r}.{closest(room, list(ROOMS))}")
    found = {name: ROOMS[name].names() for name in ([room] if room else ROOMS)}
    if as_json:
        typer.echo(json.dumps(found[room] if room else found))
    elif room:
        typer.echo("\n".join(found[room]) or f"No {room} are installed.")
    else:
        for name, names in found.items():
            typer.echo(f"{name:14s} {', '.join(names) or '-'}")

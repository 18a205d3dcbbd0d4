"""`joma plan`: what a sweep would read, and what it would take. Reads one header per run."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joma.cli.sweep import SOURCE_HELP

if TYPE_CHECKING:  # imports torch, which other verbs do without
    from joma.sweep.plan import Plan

WORKERS = (1, 2, 8, 64)


def plan(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    probe: Annotated[str, typer.Option(help="Metrics, with commas between.")] = "rank,coherence",
    out: Annotated[
        Path | None,
        typer.Option(help="Records that are there already.", show_default=False),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Instead of 1, 2, 8 and 64.", show_default=False)
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="Megabytes a second of one worker, if known.", show_default=False),
    ] = None,
    price: Annotated[
        float, typer.Option(help="Dollars for a worker and an hour (assumed).")
    ] = 0.05,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time a few revisions of this suite, here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a sweep would read, and its time and cost for some workers.

    Example: joma plan 'hub:EleutherAI/pythia-1.4b@step*' --probe rank
    """
    opened = importlib.import_module("joma.sources").open(source)
    store = importlib.import_module("joma.records.store").Store
    completed = set() if out is None else store(out).completed()
    names = [name.strip() for name in probe.split(",")]
    todo = importlib.import_module("joma.sweep.plan").plan(opened, names, completed=completed)
    found = _plain(todo, [workers] if workers else list(WORKERS), bandwidth, price)
    if measure and todo.tasks:
        cost = importlib.import_module("joma.sweep.cost")
        pace = cost.paced(todo)
        seconds = [pace.seconds(task) for task in todo.tasks]
        for row in found["estimates"]:
            row["measured_seconds"] = cost.makespan(seconds, row["workers"])
    typer.echo(json.dumps(found, indent=1) if as_json else _text(found))


def _plain(
    todo: "Plan", workers: list[int], bandwidth: float | None, price: float
) -> dict[str, Any]:
    cost = importlib.import_module("joma.sweep.cost")
    total, work = todo.total, cost.work_of(todo)
    machine = cost.Machine()
    if bandwidth is not None:
        machine = replace(machine, bandwidth=bandwidth * 1e6)
    whole = sum(index.nbytes for index in todo.indices.values()) / max(1, len(todo.indices))
    rows = [cost.estimate(work, n, machine, cost.Limits(), price=price) for n in workers]
    return {
        "revisions": todo.revisions,
        "left_out": [revision.name for revision in todo.left_out],
        "tasks": len(todo.tasks),
        "tensors": total.tensors,
        "bytes": total.bytes,
        "requests": total.requests,
        "checkpoint_bytes": whole,
        "estimates": [
            {
                "workers": row.workers,
                "seconds": row.seconds,
                "saturates_first": row.first,
                "dollars": row.dollars,
            }
            for row in rows
        ],
    }


def _text(found: dict[str, Any]) -> str:
    lines = [
        f"{found['revisions']} revisions, {found['tasks']} tasks to do",
        f"{found['tensors']:,} tensors, {found['bytes'] / 1e9:,.3f} GB, "
        f"{found['requests']:,} requests",
        f"{'workers':>8} {'hours':>9} {'dollars':>9}  saturates first",
    ]
    for row in found["estimates"]:
        line = (
            f"{row['workers']:>8} {row['seconds'] / 3600:>9.3f} {row['dollars']:>9.2f}  "
            f"{row['saturates_first']}"
        )
        if "measured_seconds" in row:
            line += f"; {row['measured_seconds'] / 3600:.3f} h at the pace of this machine"
        lines.append(line)
    if found["left_out"]:
        lines.append(f"Left out, as they state no step: {', '.join(found['left_out'])}")
    return "\n".join(lines)

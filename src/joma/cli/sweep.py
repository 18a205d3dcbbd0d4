"""`joma sweep`: measure every checkpoint of a suite into records."""

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joma._core.errors import JomaError
from joma.cli._progress import bar

if TYPE_CHECKING:  # imports torch, which other verbs do without
    from joma.sweep.run import Outcome

SOURCE_HELP = "A directory, or KIND:WHERE as in hub:EleutherAI/pythia-160m@step*."


def sweep(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    out: Annotated[Path, typer.Option(help="Folder of the records.")],
    probe: Annotated[str, typer.Option(help="Metrics, with commas between.")] = "rank,coherence",
    engine: Annotated[str, typer.Option(help="serial, process or ray.")] = "serial",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Tasks at once.", show_default=False)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster.", show_default=False)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds a task may take.", show_default=False)
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="What models read, for entropy.", show_default=False)
    ] = None,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 128,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of the text.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a suite of checkpoints. Run it again after an interruption: it goes on.

    Exits with 1 if tasks were put aside because they kept failing.

    Example: joma sweep 'hub:EleutherAI/pythia-70m@step*' --probe rank --out pythia-70m
    """
    running = importlib.import_module("joma.sweep.run")
    jobs = importlib.import_module("joma.sweep.job")
    with bar("sweep") as move:
        done = running.Sweep(
            source,
            [name.strip() for name in probe.split(",")],
            out=out,
            engine=engine,
            workers=workers,
            timeout=timeout,
            address=address,
            text=None if text is None else jobs.Text(_read(text), length, sequences),
        ).run(move)
    for revision in done.plan.left_out:
        typer.echo(f"Left out: {revision.problem}", err=True)
    typer.echo(json.dumps(_plain(done), indent=1) if as_json else _lines(done))
    if done.quarantined:
        raise typer.Exit(1)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise JomaError(f"{path} cannot be read as a text: {error}.") from error


def _plain(done: "Outcome") -> dict[str, Any]:
    return {
        "store": str(done.store.path),
        "tasks_done": done.done,
        "revisions": done.plan.revisions,
        "seconds": done.seconds,
        "bytes": done.cost.bytes,
        "requests": done.cost.requests,
        "retries": done.cost.retries,
        "reading_seconds": done.cost.reading,
        "measuring_seconds": done.cost.measuring,
        "left_out": [revision.name for revision in done.plan.left_out],
        "quarantined": dict(done.quarantined),
    }


def _lines(done: "Outcome") -> str:
    lines = [
        f"{done.store.path}: {done.plan.revisions} revisions, {done.done} tasks done now, "
        f"{done.cost.bytes / 1e6:,.1f} MB in {done.cost.requests} reads, {done.seconds:.1f} s."
    ]
    lines += [f"Put aside: {task}. {reason}" for task, reason in done.quarantined.items()]
    return "\n".join(lines)

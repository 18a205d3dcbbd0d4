"""`joma inspect`: the readings of the monitor, once, for a model on disk."""

import dataclasses
import importlib
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joma._core.errors import JomaError

if TYPE_CHECKING:
    from joma.monitor.snapshot import Rank, Row, Snapshot

ONE_LOOK = (
    "One look cannot be judged: narrow attention may serve a model well, and the diagnosis "
    "compares each layer with its own step 0. Watch the training: joma.watch(trainer)."
)


def inspect(
    model: Annotated[Path, typer.Argument(help="A directory of transformers' save_pretrained.")],
    text: Annotated[Path, typer.Option(help="A text file to show to the model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read attention entropy, largest logit and stable rank of every layer of a model.

    Nothing is downloaded.

    Example: joma inspect ./my-model --text README.md
    """
    if not text.is_file():
        raise JomaError(f"There is no text file {text}.")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when it is imported
    # Imported here: this is the one verb that loads transformers.
    found: Snapshot = importlib.import_module("joma.monitor.snapshot").snapshot(model, text)
    if as_json:
        typer.echo(json.dumps(_plain(dataclasses.asdict(found) | {"note": ONE_LOOK}), indent=1))
    else:
        typer.echo("\n".join(_lines(model, found)))


def _plain(value: Any) -> Any:
    """What JSON can hold: an undefined number is null there."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _lines(model: Path, found: "Snapshot") -> Iterator[str]:
    yield f"{model}: {found.family}, {found.sequences} x {found.length} tokens"
    if found.missing:
        yield f"Random, because the files do not hold them: {', '.join(found.missing)}"
    yield f"{'layer':<8}{'entropy':>9}{'of ceiling':>12}{'max logit':>11}  stable rank ± bound"
    yield from (_line(row) for row in found.rows)
    yield ONE_LOOK


def _line(row: "Row") -> str:
    name = f"{row.layer} {row.site}".strip()
    ranks = ", ".join(_rank(rank) for rank in row.ranks) or "not found"
    return f"{name:<8}{row.entropy:>9.3f}{row.fraction:>12.1%}{row.logit:>11.2f}  {ranks}"


def _rank(rank: "Rank") -> str:
    site = f"{rank.site} " if rank.site else ""
    off = max(rank.upper - rank.value, rank.value - rank.lower)
    return f"{site}{rank.value:.3f} ± {off:.1g}"

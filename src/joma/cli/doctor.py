"""`joma doctor`: what this machine has, and whether our kernels are right on it."""

import dataclasses
import importlib
import json
import math
import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated, Any

import typer

from joma._core.errors import MissingDataError
from joma._core.version import __version__

CORPUS = "wikitext-2"
_OPTIONAL = re.compile(r"([\w.-]+).*;.*\bextra == ['\"](\w+)['\"]")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at environment, extras, devices and data, and test the kernels against plain torch.

    Exits with 1 if a kernel is wrong here. What is merely not installed is not an error.

    Example: joma doctor
    """
    found = _examined()
    typer.echo(json.dumps(found, indent=1) if as_json else "\n".join(_lines(found)))
    if not found["healthy"]:
        raise typer.Exit(1)


def _examined() -> dict[str, Any]:
    selftest = importlib.import_module("joma.cli._selftest")  # torch is loaded here
    trials = selftest.trials()
    return {
        "joma": __version__,
        "environment": _environment(),
        "extras": _extras(),
        "devices": [dataclasses.asdict(one) for one in selftest.devices()],
        "attention": [dataclasses.asdict(one) for one in selftest.paths()],
        "implementations": dict(selftest.IMPLEMENTATIONS),
        "selftest": [_trial(one) for one in trials],
        "data": _data(),
        "healthy": all(one.passed for one in trials),
    }


def _environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "torch": metadata.version("torch"),
    }


def _extras() -> list[dict[str, str | None]]:
    """Every optional package that the installed joma names; the version is absent if it is."""
    named = (_OPTIONAL.match(line) for line in metadata.requires("joma") or ())
    wanted = [(m[2], m[1]) for m in named if m is not None and m[2] != "all"]
    return [
        {"extra": extra, "package": package, "version": _version(package)}
        for extra, package in wanted
    ]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _data() -> dict[str, Any]:
    wikitext = importlib.import_module("joma.data.wikitext")
    try:
        return {"name": CORPUS, "folder": str(wikitext.folder(CORPUS)), "problem": None}
    except MissingDataError as error:
        return {"name": CORPUS, "folder": None, "problem": str(error)}


def _trial(one: Any) -> dict[str, Any]:
    error = one.error if math.isfinite(one.error) else None  # JSON knows neither nan nor inf
    return dataclasses.asdict(one) | {"error": error, "passed": one.passed}


def _lines(found: dict[str, Any]) -> Iterator[str]:
    here = found["environment"]
    yield f"joma {found['joma']}, Python {here['python']}, torch {here['torch']}"
    yield f"{here['platform']}, {here['processors']} processors"
    yield "\nDevices"
    for one in found["devices"]:
        yield f"  {one['name']:<8} {one['description']}{_aside(one['note'])}"
    yield "\nExtras"
    for one in found["extras"]:
        there = one["version"] or f"missing: pip install 'joma[{one['extra']}]'"
        yield f"  {one['extra']:<10} {one['package']:<16} {there}"
    yield "\nAttention is measured by"
    for one in found["attention"]:
        yield f"  {one['path']:<6} {one['device']}, {one['call']}{_aside(one['note'])}"
        yield f"         {one['why']}"
    yield "\nImplementations of transformers that are observed"
    for name, note in found["implementations"].items():
        yield f"  {name}{_aside(note)}"
    yield "\nKernels"
    for one in found["selftest"]:
        error = "a broken bound" if one["error"] is None else f"error {one['error']:.1e}"
        yield (
            f"  {'right' if one['passed'] else 'WRONG'}  {one['kernel']} against {one['against']}: "
            f"{error}, at most {one['bar']:.0e} ({one['seconds']:.1f} s)"
        )
    data = found["data"]
    yield f"\nData\n  {data['name']}: {data['folder'] or data['problem']}"


def _aside(note: str) -> str:
    return f" ({note})" if note else ""

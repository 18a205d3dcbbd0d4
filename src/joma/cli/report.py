"""`joma report`: one page over any records, to open, to send, to print."""

import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joma import experiments

if TYPE_CHECKING:  # import Arrow, which other verbs do without
    from joma.experiments._ledger import Row
    from joma.report.material import Claimed, Material


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Records of a run, a sweep or an experiment; or several.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("report.html"),
    theory: Annotated[
        bool, typer.Option("--theory", help="Draw predictions beside measurements.")
    ] = False,
    png: Annotated[
        Path | None, typer.Option(help="Folder for figures as PNG.", show_default=False)
    ] = None,
    pdf: Annotated[
        Path | None, typer.Option(help="Folder for figures as PDF.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write one HTML file that shows what records say; it opens without a network.

    Example: joma report joma-records -o report.html
    """
    given = importlib.import_module("joma.report.material")
    read = [decided(given.material(path), path) for path in given.stores(folders)]
    page = importlib.import_module("joma.report.page")  # needs joma[report]
    text = page.page(read, theory=theory)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8", newline="\n")
    wanted = {ending: place for ending, place in (("png", png), ("pdf", pdf)) if place is not None}
    drawn = _draw(read, wanted, theory) if wanted else []
    if as_json:
        told = {"page": str(out), "bytes": out.stat().st_size, "figures": [str(p) for p in drawn]}
        typer.echo(json.dumps(told | {"stores": [m.path for m in read]}, indent=1))
    else:
        typer.echo("\n".join(str(path) for path in (out, *drawn)))


def decided(found: "Material", path: Path) -> "Material":
    """With claims and figure, if these are the records of an experiment."""
    place = path.resolve()
    if len(place.parts) < 4 or place.parts[-3] not in experiments.registry.names():
        return found
    name, preset, version = place.parts[-3:]
    if re.fullmatch(r"v\d+", version) is None:
        return found
    experiment = experiments.registry.load(name)
    found = replace(found, title=experiment.title)
    if version != f"v{experiment.version}" or preset not in experiment.presets:
        remark = (
            f"{found.path} has records of {name} {preset} {version}; the claims are of "
            f"v{experiment.version}. Nothing was decided: joma run {name} --preset {preset}."
        )
        return replace(found, remark=remark)
    outside = place.parents[2]
    seen = experiments._runner.evidence(name, experiment, preset=preset, out=outside)
    if seen is None:
        return replace(found, remark=f"No seed of {name} is complete, so no claim was decided.")
    figures = importlib.import_module("joma.experiments._figure")
    rows = experiments._ledger.rows(outside, preset=preset, names=[name])
    return replace(found, claims=_claims(rows), panels=figures.panels(experiment, seen))


def _claims(rows: "Sequence[Row]") -> "tuple[Claimed, ...]":
    given = importlib.import_module("joma.report.material")
    return tuple(
        given.Claimed(
            name=row.claim,
            says=row.says,
            verdict=row.verdict,
            numbers=row.numbers(),
            control=row.control,
            rule=row.rule,
            command=row.command,
            note=f"Seeds: {row.finding.seeds}. {row.finding.note}" if row.finding else "",
        )
        for row in rows
    )


def _draw(read: "Sequence[Material]", wanted: dict[str, Path], theory: bool) -> list[Path]:
    page = importlib.import_module("joma.report.page")
    drawing = importlib.import_module("joma.report.plot")  # needs joma[plot]
    made = []
    for name, title, panels in page.figure_files(read, theory=theory):
        for ending, folder in wanted.items():
            folder.mkdir(parents=True, exist_ok=True)
            made.append(folder / f"{name}.{ending}")
            drawing.save(panels, made[-1], title=title)
    return made

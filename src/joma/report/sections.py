"""The sections of a page that are words and tables: theory, claims, provenance, the records."""

import json
from collections.abc import Sequence
from typing import Final

from joma._core.version import __version__
from joma.analysis.agreement import Agreement, agreement
from joma.report import thin, timeline
from joma.report.courses import Course
from joma.report.download import download
from joma.report.html import Html, joined, table, tag
from joma.report.material import Material

MOST_ROWS: Final = 200
MOST_NOTES: Final = 20
LONGEST_NOTE: Final = 20_000


def theory(materials: Sequence[Material]) -> Html:
    """How far what was measured is from what was predicted."""
    note = tag("p", "A prediction is that of a model with its own assumptions, not of this run.")
    found = [a for m in materials for a in agreement(m.table) if a.points]
    if not found:
        none = "No curve of these records was both predicted and measured."
        return joined([note, tag("p", none)])
    head = ("curve", "points", "largest distance", "root mean square", "correlation")
    rows = [_agreement(a) for a in found[:MOST_ROWS]]
    return joined([note, table("Predicted against measured", head, rows)])


def claims(materials: Sequence[Material]) -> Html | None:
    """Every claim with its verdict, its control and how to reproduce it."""
    rows = [
        (
            f"{m.title}: {c.name}. {c.says}",
            c.verdict,
            f"{c.numbers} {c.note}",
            c.control,
            c.rule,
            c.command,
        )
        for m in materials
        for c in m.claims
    ]
    head = ("claim", "verdict", "median [range] over seeds", "control", "rule", "reproduce")
    return table("Claims, decided from these records", head, rows) if rows else None


def provenance(materials: Sequence[Material]) -> Html:
    """What the records were made with, as it was noted."""
    parts = [tag("p", f"This page was made by joma {__version__}.")]
    for found in materials:
        for key, noted in list(found.provenance.items())[:MOST_NOTES]:
            text = json.dumps(noted, indent=1, ensure_ascii=False, default=str)
            cut = "\n…" if len(text) > LONGEST_NOTE else ""
            body = tag("pre", text[:LONGEST_NOTE] + cut, tabindex="0")
            parts.append(tag("details", tag("summary", f"{found.path}, {key[:8]}"), body))
        more = len(found.provenance) - MOST_NOTES
        if more > 0:
            parts.append(tag("p", f"{found.path}: {more} more in its folder provenance."))
        if not found.provenance:
            parts.append(tag("p", f"{found.path}: no provenance was noted."))
    return joined(parts)


def records(
    materials: Sequence[Material], courses: Sequence[Course], points: int, columns: int
) -> Html:
    """The table to take away, and by what rule figures and table were made smaller."""
    made = download([m.table for m in materials], courses)
    text = "All records."
    if not made.whole:
        places = ", ".join(m.path for m in materials)
        text = (
            "The records are too many for a page: this is each curve, heads taken together, with "
            f"at most {made.points} points. All records are in {places}; joma.load gives them."
        )
    if made.cut:
        text += " Even so the last runs did not fit and are missing here."
    rule = (
        f"Curves are drawn with at most {points} points, maps with {columns} steps. {thin.RULE} "
        f"{timeline.RULE} {timeline.SNAPSHOT_RULE}"
    )
    return joined(
        [
            tag("p", text),
            tag("p", tag("button", "Download CSV", id="download", type="button")),
            tag("p", rule, class_="note"),
            tag("pre", made.text, id="csv", hidden=True),
        ]
    )


def _agreement(a: Agreement) -> tuple[str, ...]:
    where = "" if a.layer is None else f", layer {a.layer}"
    values = (f"{v:.3g}" for v in (a.largest, a.typical, a.correlation))
    return (f"{a.run}, {a.metric}{where}", str(a.points), *values)

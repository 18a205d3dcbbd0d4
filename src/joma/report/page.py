"""A page over any records: one file that opens from disk, without a network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from joma._core.errors import JomaError
from joma.report import bundle, sections, words
from joma.report.courses import Course, courses
from joma.report.figures import MOST_LINES, comparison, curve_panels
from joma.report.gallery import Gallery
from joma.report.html import Html, asset, data, document, joined, tag
from joma.report.material import Material
from joma.report.panels import Panel
from joma.report.timeline import snapshots, timeline

LARGEST: Final = 6_000_000
"""Bytes of a page, of which plotly.js takes 4.8 million."""
POINTS, CELLS, RUNS = 24_000, 24_000, 12
"""Points of all curves, cells of all maps, and runs that are drawn one by one."""

_SHARES: Final = (1.0, 0.5, 0.25, 0.1)
_PAPER: Final = 4000
"""Points of a curve, and steps of a map, in a figure for a paper."""
_Read: TypeAlias = tuple[Material, tuple[Course, ...]]
_Shown: TypeAlias = Sequence[tuple[Material, Course]]


@dataclass(frozen=True)
class Budget:
    """How much of each curve and map a page can carry."""

    points: int
    columns: int

    @classmethod
    def of(cls, shown: Sequence[Course], share: float) -> "Budget":
        """Shared out evenly over the curves of these runs."""
        lines = sum(len(course.curves) for course in shown) + 4 * MOST_LINES
        return cls(
            points=int(np.clip(share * POINTS / lines, 8, 1000)),
            columns=int(np.clip(share * CELLS / lines, 8, 240)),
        )


def page(materials: Sequence[Material], *, theory: bool = False) -> str:
    """The page of these stores, smaller than `LARGEST`: with fewer points if need be.

    Args:
        materials: What was read.
        theory: Draw predictions beside what was measured.
    """
    read = [(found, courses(found.table)) for found in materials]
    script, size = bundle.script(), 0
    for share in _SHARES:
        made = _page(read, theory, share, script)
        size = len(made.encode())
        if size < LARGEST:
            return made
    raise JomaError(
        f"The page would have {size:,} bytes, more than {LARGEST:,}, even with a tenth of the "
        "points. Report on fewer runs."
    )


def figure_files(
    materials: Sequence[Material], *, theory: bool = False
) -> Iterator[tuple[str, str, tuple[Panel, ...]]]:
    """Name, title and panels of each figure for a paper; of an experiment, its own figure."""
    for i, found in enumerate(materials):
        if found.panels:
            yield f"{i}-figure", found.title, found.panels
            continue
        drawn = [course for course in courses(found.table) if _moves(course)]
        for j, course in enumerate(drawn):
            maps = timeline(course, most=_PAPER, columns=_PAPER)
            curves = curve_panels(course, theory=theory, most=_PAPER)
            panels = (*curves, *(p for p in maps if p.heat is not None))
            yield f"{i}-{j}-curves", course.name, panels


def _page(read: Sequence[_Read], theory: bool, share: float, script: str) -> str:
    materials = [found for found, _ in read]
    every = [course for _, of in read for course in of]
    shown = _chosen(read, max(1, round(RUNS * share)))
    budget, gallery = Budget.of([course for _, course in shown], share), Gallery()
    made: list[tuple[str, str, Html | None]] = [
        ("findings", "What matters", words.findings(materials)),
        ("state", "State of each layer", _states(shown)),
        ("compare", "Runs side by side", _compared(read, gallery, budget)),
        ("figures", "Figures of the experiments", _own(materials, gallery)),
        ("runs", "Run by run", _runs(shown, len(every), gallery, theory, budget)),
        ("theory", "Theory beside measurement", sections.theory(materials) if theory else None),
        ("claims", "Claims and controls", sections.claims(materials)),
        ("undefined", "What could not be measured", words.undefined(materials)),
        ("provenance", "Where the records come from", sections.provenance(materials)),
        ("table", "The table", sections.records(materials, every, budget.points, budget.columns)),
    ]
    present = [(name, title, body) for name, title, body in made if body]
    body = joined(
        [
            tag("a", "Skip to the findings", href="#findings", class_="skip"),
            _header(materials, [(n, t) for n, t, _ in present]),
            tag("main", *(tag("section", tag("h2", t), b, id=n) for n, t, b in present)),
            data(gallery.figures, "drawings"),
        ]
    )
    title = "joma report: " + ", ".join(m.title or m.path for m in materials)
    return document(title, body, [script, asset("page.js")])


def _moves(course: Course) -> bool:
    return any(len(b.curve.steps) > 1 for b in course.curves)


def _chosen(read: Sequence[_Read], most: int) -> list[tuple[Material, Course]]:
    """The runs that are drawn one by one: those with an alarm first, then by name."""
    alarmed = {(m.path, d.run) for m, _ in read for d in m.diagnoses if d.verdict.alarm}
    found = [(m, course) for m, of in read for course in of if _moves(course)]
    found.sort(key=lambda pair: (pair[0].path, pair[1].run) not in alarmed)
    return found[:most]


def _header(materials: Sequence[Material], present: Sequence[tuple[str, str]]) -> Html:
    places = [tag("li", tag("code", m.path), f": {m.table.num_rows:,} records") for m in materials]
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title in present]
    button = tag("button", "Dark colours", id="theme", type="button")
    return tag(
        "header",
        tag("div", tag("h1", "joma report"), button, class_="top"),
        tag("ul", *places, class_="stores"),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("noscript", tag("p", "Figures need JavaScript; their numbers are in the tables.")),
    )


def _states(shown: _Shown) -> Html | None:
    """A table per run, the first one open."""
    found = [(c.name, made) for _, c in shown if (made := words.state(c)) is not None]
    parts = [
        tag("details", tag("summary", tag("h3", name)), made, open=i == 0, class_="run")
        for i, (name, made) in enumerate(found)
    ]
    return joined(parts) if parts else None


def _compared(read: Sequence[_Read], gallery: Gallery, budget: Budget) -> Html | None:
    """Runs beside each other, but for those that an experiment's own figure compares."""
    runs = [course for m, of in read if not m.panels for course in of]
    panels = comparison(runs, budget.points) if len(runs) > 1 else ()
    return gallery.hang(panels) if panels else None


def _runs(shown: _Shown, there: int, gallery: Gallery, theory: bool, budget: Budget) -> Html | None:
    if not shown:
        return None
    parts = [_run(m, c, gallery, theory, budget, i == 0) for i, (m, c) in enumerate(shown)]
    if there > len(shown):
        text = f"{len(shown)} of {there} runs are drawn one by one, those with an alarm first."
        parts.insert(0, tag("p", text, class_="note"))
    return joined(parts)


def _run(
    found: Material, course: Course, gallery: Gallery, theory: bool, budget: Budget, first: bool
) -> Html:
    maps = timeline(course, most=budget.points, columns=budget.columns)
    title = "Loss and layers over the run; the input is the lowest row of each map"
    parts = [gallery.hang_stacked(title, maps)] if maps else []
    parts.append(gallery.hang(curve_panels(course, theory=theory, most=budget.points)))
    parts.append(gallery.hang(snapshots(found.table, course)))
    return tag("details", tag("summary", tag("h3", course.name)), *parts, open=first, class_="run")


def _own(materials: Sequence[Material], gallery: Gallery) -> Html | None:
    parts = [joined([tag("h3", m.title), gallery.hang(m.panels)]) for m in materials if m.panels]
    return joined(parts) if parts else None

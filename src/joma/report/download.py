"""The table behind a page as CSV: all of it, or as much as a page can carry."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv

from joma.report.courses import Course
from joma.report.thin import kept

LARGEST: Final = 500_000
"""Characters of a table that a page carries whole."""
_FEWEST: Final = 4
_HEAD: Final = (
    "run",
    "stage",
    "kind",
    "metric",
    "layer",
    "site",
    "step",
    "value",
    "lower",
    "upper",
)


class Download(NamedTuple):
    """A table as text, and whether it is all of it."""

    text: str
    whole: bool
    points: int = 0
    """Of each curve, if it is not."""
    cut: bool = False
    """Whether even so the last runs did not fit."""


def download(tables: Sequence[pa.Table], courses: Iterable[Course]) -> Download:
    """Records as CSV; if they are too many, the curves over heads, with fewer points each."""
    rows = sum(table.num_rows for table in tables)
    if rows <= LARGEST // 40:  # no row is shorter than that
        text = _whole(tables)
        if len(text) <= LARGEST:
            return Download(text, True)
    every = list(courses)
    most = max(_FEWEST, LARGEST // 40 // max(1, sum(len(c.curves) for c in every)))
    while len(text := _thinned(every, most)) > LARGEST and most > _FEWEST:
        most = max(_FEWEST, most // 2)
    cut = len(text) > LARGEST
    return Download(text[: text.rindex("\n", 0, LARGEST)] if cut else text, False, most, cut)


def _whole(tables: Sequence[pa.Table]) -> str:
    table = pa.concat_tables(tables).unify_dictionaries()
    columns = [
        pa.chunked_array([[_harmless(word) for word in column.to_pylist()]], pa.string())
        if pa.types.is_dictionary(column.type)
        else column
        for column in table.columns
    ]
    sink = io.BytesIO()
    pa_csv.write_csv(pa.table(columns, names=table.column_names), sink)
    return sink.getvalue().decode()


def _thinned(courses: Iterable[Course], most: int) -> str:
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerow(_HEAD)
    for course in courses:
        for found in course.curves:
            c, keep = found.curve, kept(found.curve.values, most)
            words = [_harmless(w) for w in (c.run, c.stage, c.kind, c.metric)]
            place = [_plain(c.layer), _harmless(c.site)]
            for i in keep:
                values = (c.steps[i], c.values[i], found.low[i], found.high[i])
                writer.writerow([*words, *place, *(f"{v:.6g}" for v in values)])
    return sink.getvalue()


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _harmless(word: str | None) -> str | None:
    """A word that no spreadsheet takes for a formula."""
    return f"'{word}" if word and word[0] in "=+-@\t\r" else word

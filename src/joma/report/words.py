"""What a page says before it shows anything: verdicts, the state of each layer, what to do."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from joma.analysis.curves import shape
from joma.analysis.diagnosis import Diagnosis, Verdict
from joma.records.schema import OK, Kind
from joma.report.courses import Bounded, Course
from joma.report.figures import ENTROPIES, LOGIT, RANK
from joma.report.html import Html, joined, table, tag
from joma.report.material import Material

MOST_CARDS: Final = 12
MOST_ROWS: Final = 200
STATE_HEAD: Final = (
    "layer",
    "entropy now (nats)",
    "of the first",
    "lowest entropy",
    "at step",
    "regained since",
    "largest logit now",
    "stable rank now",
    "of the first",
)
SHOWN: Final = {
    Verdict.COLLAPSING: "alarm",
    Verdict.EXPLODING: "alarm",
    Verdict.CANNOT_SAY: "unsure",
    Verdict.SPARSE: "calm",
    Verdict.NO_WARNING: "calm",
}
_CLAIMS: Final = {
    "fails": "alarm",
    "not distinguishable from control": "unsure",
    "not decided by these records": "unsure",
    "holds": "calm",
}
"""What claims may be, and how that is shown; the first of these come first."""


def findings(materials: Sequence[Material]) -> Html:
    """Verdicts on runs and claims, the most urgent first, or why there are none."""
    cards = [*_of_runs(materials), *_of_claims(materials)]
    aside = sum(len(m.aside) for m in materials)
    if aside:
        text = "They are listed below, each with its reason, under “What could not be measured”."
        cards.append(_card("put aside", "unsure", f"{aside} tasks of a sweep", text))
    remarks = [tag("p", m.remark, class_="note") for m in materials if m.remark]
    if not cards:
        text = (
            "Nothing here can be judged: a verdict needs attention entropies and the loss of a "
            "run from its step 0, and no experiment's claims were found. The curves are below."
        )
        return joined([tag("p", text), *remarks])
    return joined([tag("ul", *cards, class_="cards"), *remarks])


def _of_runs(materials: Sequence[Material]) -> list[Html]:
    """One card per verdict and message; runs of which the same is said share it."""
    said: dict[tuple[Verdict, str], list[str]] = defaultdict(list)
    for found in materials:
        for one in found.diagnoses:
            # Of an experiment its claims are asked; of its runs, alarms are news.
            if one.verdict.alarm or not found.claims:
                said[one.verdict, one.message].append(_who(one))
    order = list(Verdict)
    cards = [
        _card(verdict.value, SHOWN[verdict], _several(names), message)
        for (verdict, message), names in sorted(said.items(), key=lambda x: order.index(x[0][0]))
    ]
    return [*cards[:MOST_CARDS], *_more(cards, "verdicts", "joma diagnose prints them all")]


def _of_claims(materials: Sequence[Material]) -> list[Html]:
    order = list(_CLAIMS)
    claims = sorted(
        ((m.title, c) for m in materials for c in m.claims), key=lambda x: order.index(x[1].verdict)
    )
    cards = [_card(c.verdict, _CLAIMS[c.verdict], f"{t}: {c.name}", c.says) for t, c in claims]
    return [*cards[:MOST_CARDS], *_more(cards, "claims", "they are under “Claims and controls”")]


def state(course: Course) -> Html | None:
    """One row per layer: where its attention and its lower MLP matrix stand."""
    entropies = _first(course, *ENTROPIES)
    logits, ranks = _by_layer(course.of(LOGIT, Kind.MEASURED)), _by_layer(_first(course, RANK))
    layers = _by_layer(entropies)
    keys = sorted({*layers, *logits, *ranks}, key=lambda k: -1 if k is None else k)
    if not any(k is not None for k in keys):
        return None
    rows = [_row(k, layers.get(k), logits.get(k), ranks.get(k)) for k in keys if k is not None]
    more = f" (the first {MOST_ROWS} of {len(rows)} layers)" if len(rows) > MOST_ROWS else ""
    return table(f"State of each layer of {course.name}{more}", STATE_HEAD, rows[:MOST_ROWS])


def undefined(materials: Sequence[Material]) -> Html | None:
    """Readings without a value and tasks put aside, each with its reason."""
    counts = Counter(reason for m in materials for reason in _reasons(m.table))
    parts: list[Html] = []
    if counts:
        rows = [(metric, why, str(n)) for (metric, why), n in counts.most_common(50)]
        more = f" (the 50 most frequent of {len(counts)} reasons)" if len(counts) > 50 else ""
        parts.append(table(f"Readings without a value{more}", ("metric", "reason", "rows"), rows))
    aside = [one for m in materials for one in m.aside]
    if aside:
        more = f" (the first 50 of {len(aside)})" if len(aside) > 50 else ""
        parts.append(table(f"Tasks put aside{more}", ("task", "reason"), aside[:50]))
    return joined(parts) if parts else None


def _card(verdict: str, tone: str, who: str, message: str) -> Html:
    head = tag("p", tag("strong", verdict, class_=f"verdict {tone}"), " ", tag("code", who))
    return tag("li", head, tag("p", message), class_=tone)


def _who(found: Diagnosis) -> str:
    where = "" if found.layer is None else f", layer {found.layer}"
    return f"{found.run}{where}"


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _more(cards: Sequence[Html], what: str, where: str) -> Iterator[Html]:
    if len(cards) > MOST_CARDS:
        yield tag("li", tag("p", f"{len(cards) - MOST_CARDS} more {what}: {where}."))


def _first(course: Course, *metrics: str) -> list[Bounded]:
    """The last of these metrics that the course has."""
    found = (course.of(metric, Kind.MEASURED) for metric in reversed(metrics))
    return next((of for of in found if of), [])


def _by_layer(found: Iterable[Bounded]) -> dict[int | None, Bounded]:
    """One curve of each layer; of several sites, the first."""
    kept: dict[int | None, Bounded] = {}
    for one in found:
        kept.setdefault(one.curve.layer, one)
    return kept


def _row(
    layer: int, entropy: Bounded | None, logit: Bounded | None, rank: Bounded | None
) -> list[str]:
    site = rank.curve.site if rank is not None else None
    row = [f"{layer}" + (f" ({site})" if site else "")]
    if entropy is None:
        row += ["-"] * 5
    else:
        seen = shape(entropy.curve.steps, entropy.curve.values)
        gained = "-" if math.isnan(seen.bounce) else f"{seen.bounce:.0%}"
        when = "-" if math.isnan(seen.dip_step) else f"{seen.dip_step:.10g}"
        row += [_n(seen.end), _share(seen.end, seen.start), _n(seen.dip), when, gained]
    row.append("-" if logit is None else _n(_last(logit)))
    if rank is None:
        return [*row, "-", "-"]
    return [*row, _n(_last(rank)), _share(_last(rank), float(rank.curve.values[0]))]


def _last(found: Bounded) -> float:
    return float(found.curve.values[-1])


def _n(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.4g}"


def _share(value: float, of: float) -> str:
    return f"{value / of:.0%}" if of > 0 and math.isfinite(value / of) else "-"


def _reasons(rows: pa.Table) -> Iterator[tuple[str, str]]:
    status = rows["status"].cast(pa.string())
    bad = rows.filter(pc.not_equal(status, OK))
    yield from zip(bad["metric"].to_pylist(), bad["status"].to_pylist(), strict=True)

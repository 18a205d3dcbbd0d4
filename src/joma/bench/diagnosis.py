"""Does attention warn earlier than the loss? Alarms of six detectors on runs around the edge.

(a) Our own runs (`_diagnosis_runs`): thresholds from the calibration configurations, scores on the
held-out ones, for two labels. (b) The authors' 141 runs, if their curves are at hand: each depth is
scored with thresholds from the other depths. *Combined* is the rule of `joma.analysis.diagnosis` as
shipped; its thresholds come from the runs *impaired* in (a), and it never saw those of (b).
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

from joma.analysis.calibration import CALIBRATION
from joma.bench._diagnosis_read import AUTHORS, RESULTS, authors_runs, own_runs, rule_alarms
from joma.bench._diagnosis_rule import chosen
from joma.bench._diagnosis_runs import ONE, ONE_FILE, ONE_STEPS
from joma.bench._diagnosis_score import (
    Detector,
    Run,
    Score,
    alarm,
    calibrated,
    failed,
    impaired,
    score,
)
from joma.bench.base import Bench, Row

LOSS: Final = "loss-only"
KEPT: Final = RESULTS / "authors.json"
OWN_FIRSTS: Final = (0.0, 10.0, 25.0, 50.0, 100.0, 200.0)
AUTHORS_FIRSTS: Final = (0.0, 1000.0, 2000.0, 5000.0, 10_000.0)
"""Steps at which a detector may begin to listen."""
ORDER: Final = (
    "entropy",
    "max logit",
    LOSS,
    "gradient-norm-only",
    "learning-rate-only",
    "combined",
)
Label: TypeAlias = Callable[[Sequence[Run]], set[str]]
LABELS: Final[dict[str, Label]] = {"failed": failed, "impaired": impaired}
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """One detector on one set of runs."""

    detector: str
    how: str
    score: Score


def run() -> Iterator[Row]:
    """Own runs, the authors', one layer, and whether the shipped thresholds are the chosen ones."""
    for name, label in LABELS.items():
        yield from _rows(f"own, {name}", own_lines(label))
    if AUTHORS.is_file():
        yield from _rows("authors', failed", authors_lines())
    else:
        _LOG.warning("The authors' curves are not at %s; part (b) is left out.", AUTHORS)
    yield from _one_layer()
    runs, observed = own_runs()
    half = [run for run in runs if not run.held_out]
    choice = chosen(half, impaired(runs), observed)
    same = float(choice.limits == CALIBRATION)
    yield Row("shipped thresholds are those the calibration half chooses", same, "", 1, True)


def _one_layer() -> Iterator[Row]:
    """One layer of another size at 1e-2 and 1e-3, without warm-up: the rule beside the loss."""
    runs, _ = own_runs()
    half = [run for run in runs if not run.held_out]
    loss = calibrated(half, impaired(runs), LOSS, OWN_FIRSTS)
    one, observed = own_runs(RESULTS / ONE_FILE, (ONE,))
    for run, bar in zip(reversed(one), (50, None), strict=True):
        step = rule_alarms([observed[run.name]], CALIBRATION)[run.name]
        yield Row(f"{run.name}: alarm of the rule (nan: none)", step, "step", bar)
        yield Row(f"... of loss-only (nan: none in {ONE_STEPS} steps)", alarm(run, loss), "step")


def own_lines(label: Label) -> list[Line]:
    """Each detector on the held-out configurations of our own runs."""
    runs, observed = own_runs()
    bad = label(runs)
    calibration = [run for run in runs if not run.held_out]
    held_out = [run for run in runs if run.held_out]
    detectors = {
        signal: calibrated(calibration, bad, signal, OWN_FIRSTS) for signal in runs[0].signals
    }
    loss = detectors[LOSS]
    lines = {
        name: Line(
            name, _how(d), score(held_out, bad, {r.name: alarm(r, d) for r in held_out}, loss)
        )
        for name, d in detectors.items()
    }
    alarms = rule_alarms((observed[r.name] for r in held_out), CALIBRATION)
    lines["combined"] = Line("combined", "the rule", score(held_out, bad, alarms, loss))
    return [lines[name] for name in ORDER]


def authors_lines() -> list[Line]:
    """Each detector on the authors' runs, every depth with thresholds from the others.

    They recorded neither logits nor gradients, so these two detectors are not here.
    """
    runs, observed = authors_runs()
    bad = failed(runs)
    loss = calibrated(runs, bad, LOSS, AUTHORS_FIRSTS)
    lines = {}
    for signal in runs[0].signals:
        alarms: dict[str, float] = {}
        for depth in {run.configuration for run in runs}:
            others = [run for run in runs if run.configuration != depth]
            detector = calibrated(others, bad, signal, AUTHORS_FIRSTS)
            alarms |= {r.name: alarm(r, detector) for r in runs if r.configuration == depth}
        how = _how(calibrated(runs, bad, signal, AUTHORS_FIRSTS))
        lines[signal] = Line(signal, how, score(runs, bad, alarms, loss))
    alarms = rule_alarms(observed.values(), CALIBRATION)
    lines["combined"] = Line("combined", "the rule as shipped", score(runs, bad, alarms, loss))
    return [lines[name] for name in ORDER if name in lines]


def keep(path: Path = KEPT) -> None:
    """Write the scores on the authors' runs to a file: their curves are not ours to ship."""
    lines = [asdict(line) | {"score": line.score._asdict()} for line in authors_lines()]
    path.write_text(json.dumps(lines, indent=1) + "\n")


def kept_lines(path: Path = KEPT) -> list[Line]:
    """What `keep` wrote."""
    found = json.loads(path.read_text())
    return [Line(one["detector"], one["how"], Score(**one["score"])) for one in found]


def document() -> str:
    """Both tables for the documentation, computed from what the checkout holds."""
    parts = {
        f"(a) Our own runs, held-out configurations: {name} runs": own_lines(label)
        for name, label in LABELS.items()
    }
    parts["(b) The authors' 141 runs, each depth by the others: failed runs"] = kept_lines()
    return "\n".join(f"**{title}**\n\n{markdown(lines)}" for title, lines in parts.items())


def markdown(lines: list[Line]) -> str:
    """The lines as a table for the documentation."""
    rows = [
        "| detector | reads | runs alarmed | false alarms | median alarm step | "
        "lead over loss-only, equal false alarms | loss-only finds there |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        s = line.score
        rows.append(
            f"| {line.detector} | {line.how} | {s.found} of {s.failed} | "
            f"{s.false_alarms} of {s.others} | {s.step:g} | {s.lead:+g} | "
            f"{s.loss_found} of {s.failed} |"
        )
    return "\n".join(rows) + "\n"


def _rows(where: str, lines: list[Line]) -> Iterator[Row]:
    for line in lines:
        s = line.score
        yield Row(f"{where}: {line.detector}: runs alarmed", s.found, f"/{s.failed}")
        yield Row("... false alarms", s.false_alarms, f"/{s.others}")
        yield Row("... median alarm step (missed: the last step)", s.step, "step")
        yield Row("... lead over loss-only at equal false alarms", s.lead, "step")
        yield Row("... runs that loss-only alarms there", s.loss_found, f"/{s.failed}")


def _how(detector: Detector) -> str:
    when = f" from step {detector.first:g}" if detector.first else ""
    when += f" to {detector.last:g}" if detector.last < math.inf else ""
    return f"{detector.reading} > {detector.threshold:.3g}{when}"


BENCH = Bench("Diagnosis: whether attention warns of a failing run before the loss does.", run)

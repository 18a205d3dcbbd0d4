"""Taking the fingerprints of a suite, and what they say about it."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joma import sources
from joma.analysis.audit import Finding, Listed, audit as audited
from joma.sources.base import AbstractSource
from joma.sweep import fingerprint
from joma.sweep.run import Outcome, State, Sweep


@dataclass(frozen=True)
class Audit:
    """What an audit found, and what it looked at."""

    findings: tuple[Finding, ...]
    revisions: int
    tensors: int
    """Looked at, of each revision."""
    coverage: float
    """Chance that one damaged tensor is among them. A wrong file or revision is always seen."""
    outcome: Outcome


def audit(
    source: AbstractSource | str,
    *,
    out: str | os.PathLike[str] | None = None,
    sample: int | None = None,
    progress: Callable[[State], object] = lambda _: None,
    **engine: Any,
) -> Audit:
    """Everything that is wrong with a suite, from partial reads.

    Args:
        source: Where the checkpoints are.
        out: Folder that keeps the fingerprints, so that an interrupted audit goes on; if absent,
            they are forgotten.
        sample: Look at so many tensors of each file; if absent, at the lower MLP matrices, and at
            one tensor of each file that has none.
        progress: As for `Sweep.run`.
        engine: `engine`, `workers`, `timeout` and `address`, as for `Sweep`.
    """
    opened = sources.open(source) if isinstance(source, str) else source
    with tempfile.TemporaryDirectory(prefix="joma-audit-") as folder:
        sweep = Sweep(
            opened,
            {"fingerprint": fingerprint.PROBE},
            out=Path(folder) if out is None else out,
            sample=sample,
            **engine,
        )
        outcome = sweep.run(progress)
        table = outcome.store.read()
    revisions = opened.revisions()
    listing = [Listed(r.name, r.run, r.stage, r.at, r.problem) for r in revisions]
    return Audit(
        tuple(audited(table, listing)),
        len(revisions),
        max((len(names) for names in outcome.plan.job.chosen.values()), default=0),
        _coverage(outcome),
        outcome,
    )


def _coverage(outcome: Outcome) -> float:
    """The least of all runs, at the first revision that can be read."""
    found = [
        fingerprint.coverage(outcome.plan.indices[run], names)
        for run, names in outcome.plan.job.chosen.items()
    ]
    return min(found, default=0.0)

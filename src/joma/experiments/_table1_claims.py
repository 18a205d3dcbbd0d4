"""What Table 1's records say: rules that were fixed before the full run."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array
from joma.experiments._table1_data import TABLE
from joma.experiments.base import Evidence, Finding, Verdict

S0, S1 = "ncorr_s0", "ncorr_s1"

S0_LEAST = 0.83  # a prototype's lowest; untrained models reach .936-.994
RISE = 0.04  # a prototype rose by .065 on average in s = 1
NEAR = 0.10


class Rows(NamedTuple):
    """One level of every cell that was trained, at the end, and its controls; same seeds."""

    trained: Float[Array, "cells seeds"]
    before: Float[Array, "cells seeds"]
    """The same models before training."""
    noise: Float[Array, "cells seeds"]

    @property
    def gain(self) -> Float[Array, " cells"]:
        """Mean over seeds of what training added to each cell."""
        return np.asarray((self.trained - self.before).mean(1))

    def numbers(self) -> dict[str, Array]:
        """Means over cells, one per seed, and how many cells gained."""
        return {
            "trained": self.trained.mean(0),
            "untrained": self.before.mean(0),
            "noise": self.noise.mean(0),
            "gain": (self.trained - self.before).mean(0),
            "cells": np.array([float(len(self.gain))]),
            "cells that gain": np.array([float(np.sum(self.gain > 0))]),
        }


def arms(evidence: Evidence, *, sampled: bool) -> list[str]:
    """Cells that were trained, without their controls, in the order of the table."""
    runs = dict.fromkeys(str(run).split("/")[1] for run in evidence.table["run"].to_pylist())
    cells = [arm for arm in runs if not arm.endswith(("_untrained", "_noise"))]
    if sampled:
        return sorted(arm for arm in cells if arm.startswith("sampled_"))
    return [cell.arm for cell in TABLE if cell.arm in cells]


def rows(evidence: Evidence, metric: str, cells: list[str]) -> Rows:
    """Scores of cells, which all have the same seeds."""
    curves = [evidence.curves(metric, arm=cell) for cell in cells]
    seeds = len(curves[0])
    noise = [evidence.curves(metric, arm=f"{cell}_noise")[:seeds] for cell in cells]
    return Rows(
        np.array([[c.values[-1] for c in cell] for cell in curves]),
        np.array([[c.values[0] for c in cell] for cell in curves]),
        np.array([[c.values[0] for c in cell] for cell in noise]),
    )


def lowest_layer(evidence: Evidence) -> Finding:
    cells = arms(evidence, sampled=False)
    found = rows(evidence, S0, cells)
    wide = np.array(
        [[c.values[0] for c in evidence.curves(S0, arm=f"{cell}_untrained")] for cell in cells]
    )
    verdict = Verdict.of(
        effect=bool(np.all(found.trained.mean(1) >= S0_LEAST)),
        control=bool(found.gain.mean() < RISE),
    )
    more = {
        "lowest cell": found.trained.mean(1).min(keepdims=True),
        "untrained, width 1024, lowest cell": wide.mean(1).min(keepdims=True),
        "untrained, width 1024, highest cell": wide.mean(1).max(keepdims=True),
    }
    return Finding.over_seeds(verdict, {**found.numbers(), **more})


def next_layer(evidence: Evidence) -> Finding:
    return _learns(evidence, S1, sampled=False, note="Noise scores high: C different inputs exist.")


def sampled_lowest(evidence: Evidence) -> Finding:
    return _learns(evidence, S0, sampled=True)


def sampled_next(evidence: Evidence) -> Finding:
    return _learns(evidence, S1, sampled=True)


def printed(evidence: Evidence) -> Finding:
    cells = [c for c in TABLE if c.classes == 20 and c.arm in arms(evidence, sampled=False)]
    found = rows(evidence, S1, [c.arm for c in cells])
    paper = np.array([c.s1 for c in cells])
    trained, before = (np.abs(part.mean(1) - paper) for part in (found.trained, found.before))
    verdict = Verdict.of(effect=bool(np.all(trained <= NEAR)), control=bool(np.all(before <= NEAR)))
    numbers = {c.arm: row for c, row in zip(cells, found.trained, strict=True)}
    numbers |= {f"{c.arm} printed": np.array([c.s1]) for c in cells}
    numbers |= {
        "largest distance": trained.max(keepdims=True),
        "largest distance, untrained": before.max(keepdims=True),
    }
    return Finding.over_seeds(verdict, numbers)


def _learns(evidence: Evidence, metric: str, *, sampled: bool, note: str = "") -> Finding:
    """Whether training raises a score in every cell, and above noise.

    A rise that the noise matches is not distinguishable from it; no rise is no effect.
    """
    found = rows(evidence, metric, arms(evidence, sampled=sampled))
    verdict = Verdict.of(
        effect=bool(np.all(found.gain > 0) and found.gain.mean() >= RISE),
        control=bool(np.any(found.noise.mean(1) >= found.trained.mean(1))),
    )
    return Finding.over_seeds(verdict, found.numbers(), note)

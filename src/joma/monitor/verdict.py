"""The diagnosis of `joma.analysis` as the judge of a monitor: the same rule, one step at a time."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from joma.analysis.calibration import CALIBRATION, Calibration
from joma.analysis.diagnosis import Diagnosis, Facts, diagnosed
from joma.analysis.series import ENTROPIES, LOGIT, LOSS, series
from joma.analysis.standing import Seen, Standing, advanced
from joma.monitor.sinks.base import Alert
from joma.records.store import load

NOTHING_SEEN: Final = "cannot say: no attention entropy was observed."
NO_LOSS: Final = "cannot say: no loss was given to see whether the model learns."

_NAME: Final = re.compile(rf"joma/({'|'.join(ENTROPIES)})/layer_(\d+)(?:/(.+))?")
"""Entropies among the numbers of an observation."""


class Judge:
    """Gives an alert when a layer begins to be in trouble; `str` of it is the verdict so far.

    A monitor hears of a loss after the update that it led to. The untrained model's own is
    therefore known one step late, and its observation waits for that.
    """

    def __init__(self, facts: Facts | None = None, limits: Calibration = CALIBRATION):
        """`facts` are those of the run, as far as they are known."""
        self.run = ""
        self.facts = facts or Facts()
        self._limits = limits
        self._keys: list[str] = []
        self._layers: list[int] = []
        self._earlier: tuple[str | os.PathLike[str], str] | None = None
        self._waiting: Seen | None = None
        self._first_loss = math.nan
        self._standing: Standing | None = None
        self._alarmed: set[tuple[int | None, str]] = set()

    def __call__(self, step: int, numbers: Mapping[str, float]) -> list[Alert]:
        """Alerts that are new at this observation; a layer that recovered may alarm again."""
        if not self._keys:
            self._find_layers(numbers)
        if self._keys:
            self._take(self._seen(step, numbers))
        alarms = {(d.layer, d.verdict.value): d for d in self.diagnoses if d.verdict.alarm}
        fresh = [d for key, d in alarms.items() if key not in self._alarmed]
        self._alarmed = set(alarms)
        return [Alert(d.verdict.value, d.message, step, layer=d.layer) for d in fresh]

    def hear(self, loss: float) -> None:
        """The loss of the first batch, before any update."""
        self._first_loss = loss

    def recall(self, out: str | os.PathLike[str], run: str) -> None:
        """Begin with what an earlier process has recorded of the same run."""
        self._earlier = (out, run)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What is to be said now, the most urgent first; nothing before there is a loss."""
        if self._standing is None:
            return ()
        facts = self.facts
        if math.isnan(self._first_loss):  # then a later loss stands in for that of step 0
            facts = replace(facts, vocabulary=None)
        return diagnosed(self.run, self._standing, facts, self._layers, self._limits)

    def __str__(self) -> str:
        found = self.diagnoses
        if not found:
            return NO_LOSS if self._keys else NOTHING_SEEN
        others = [str(d.layer) for d in found[1:] if d.verdict is found[0].verdict]
        more = f" The same in layer {', '.join(others)}." if others else ""
        looked = f"last look at step {found[0].step:g}"
        return f"{found[0].verdict.value} ({looked}): {found[0].message}{more}"

    def _find_layers(self, numbers: Mapping[str, float]) -> None:
        found = [match for match in map(_NAME.fullmatch, numbers) if match is not None]
        for metric in ENTROPIES:
            chosen = sorted((int(m[2]), m[3] or "", m[0]) for m in found if m[1] == metric)
            if chosen:
                self._keys = [key for _, _, key in chosen]
                self._layers = [layer for layer, _, _ in chosen]
                self._take_earlier(metric)
                return

    def _take_earlier(self, metric: str) -> None:
        if self._earlier is None:
            return
        out, run = self._earlier
        for earlier in series(load(out).read(run=run, metric=(metric, LOGIT, LOSS))):
            if list(earlier.layers) == self._layers:
                for seen in earlier.seen:
                    self._take(seen)

    def _seen(self, step: int, numbers: Mapping[str, float]) -> Seen:
        def values(keys: list[str]) -> list[float]:
            return [numbers.get(key, math.nan) for key in keys]

        logits = [re.sub("|".join(ENTROPIES), "max_logit", key) for key in self._keys]
        return Seen(
            step=step,
            entropy=np.array(values(self._keys)),
            logit=np.array(values(logits)),
            loss=numbers.get(LOSS, math.nan),
        )

    def _take(self, seen: Seen) -> None:
        if self._standing is None:
            if math.isnan(seen.loss):
                self._waiting = self._waiting or seen
                return
            if self._waiting is not None:
                known = not math.isnan(self._first_loss)
                loss = self._first_loss if known else seen.loss
                self._standing = advanced(None, replace(self._waiting, loss=loss), self._limits)
        if self._standing is None or seen.step > self._standing.last.step:
            self._standing = advanced(self._standing, seen, self._limits)


def judge(facts: Facts | None = None) -> Judge:
    """The judge for a loop of one's own: `Monitor(model, judge=judge())`.

    Example:
        >>> rule = judge()
        >>> for step, entropy, loss in ((0, 3.0, 6.9), (8, 0.2, 6.0), (16, 0.1, 6.0)):
        ...     numbers = {"joma/attention_entropy/layer_00": entropy, "loss": loss}
        ...     alerts = rule(step, numbers)
        >>> [(alert.title, alert.layer) for alert in alerts]
        [('attention collapsing', 0)]
    """
    return Judge(facts)

"""A monitor that someone else's trainer starts, feeds and ends."""

import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from torch import nn

from joma._core.errors import JomaError
from joma._core.registry import closest
from joma.analysis.facts import Facts
from joma.monitor.clock import Cost
from joma.monitor.desk import Scalar
from joma.monitor.monitor import Monitor
from joma.monitor.sinks.base import Alert
from joma.monitor.verdict import NOTHING_SEEN, Judge

VERDICT: Final = "joma_verdict"
STEP: Final = "joma/step"
"""The step that readings are of: a trainer may log them later, at a step of its own."""
FACTS: Final = "joma_facts"
RECORDS: Final = "joma-records"

_LOG = logging.getLogger("joma.monitor")


class Hosted:
    """What `joma.watch` gives: a `Monitor` for each training that the trainer begins."""

    def __init__(self, options: Mapping[str, Any]):
        """`options` are those of `Monitor`; the model and its steps are the trainer's matter."""
        known = sorted(set(inspect.signature(Monitor).parameters) - {"model", "step"})
        for name in options:
            if name not in known:
                raise JomaError(f"joma.watch has no option {name!r}.{closest(name, known)}")
        self.monitor: Monitor | None = None
        """That of the last training; None before the first."""
        self._options = dict(options)
        self.judge_errors = 0
        """How often the judge raised in the last training."""
        self._judge: Judge | None = None
        self._tell: Callable[[Alert], None] = _nothing
        self._untrained = True
        self._observed = 0
        self._told: dict[str, float] = {}

    @property
    def run(self) -> str | None:
        """Name of the run in the records; None before training."""
        return None if self.monitor is None else self.monitor.run

    @property
    def alerts(self) -> list[Alert]:
        """What was said in the last training."""
        return [] if self.monitor is None else self.monitor.alerts

    @property
    def verdict(self) -> str:
        """What the diagnosis says so far, in words; empty if another judge was given."""
        if "judge" in self._options:
            return ""
        return NOTHING_SEEN if self._judge is None else str(self._judge)

    def metrics(self) -> dict[str, float]:
        """The last readings, as `joma/attention_entropy/layer_00` and so on."""
        return {} if self.monitor is None else self.monitor.metrics()

    def cost(self) -> Cost:
        """What the monitor has taken in the last training."""
        return Cost(0.0, 0.0, 0.0, 0) if self.monitor is None else self.monitor.cost()

    def begin(
        self,
        model: nn.Module,
        *,
        step: int,
        run: str | None,
        out: str | os.PathLike[str],
        facts: Facts,
        tell: Callable[[Alert], None] | None = None,
    ) -> None:
        """A training begins, after `step` updates.

        Args:
            model: What the trainer calls.
            step: Updates made before.
            run: The name it had before, if it is resumed.
            out: Where records go if the user has not said.
            facts: As far as the trainer knows; those in the user's `config` come first.
            tell: The trainer's own way to pass on an alert.
        """
        self.close()
        self._untrained, self._observed, self._told = step == 0, step, {}
        self.judge_errors = 0
        self._tell = tell or _nothing
        settings = {"out": out, "run": run, **self._options}
        config = dict(settings.pop("config", None) or {})
        config[FACTS] = dataclasses.asdict(facts) | dict(config.get(FACTS, {}))
        settings |= {"config": config, "judge": self._judged, "on_alert": self._alerted}
        self._judge = None
        if "judge" not in self._options:
            self._judge = Judge(Facts.of({"config": config}))
            if step and settings["run"] is not None:
                self._judge.recall(settings["out"], settings["run"])
        self.monitor = Monitor(model, step=step, **settings)
        if self._judge is not None:
            self._judge.run = self.monitor.run

    def lasts(self, length: int) -> None:
        """Tokens of a sequence of causal attention, once they are seen."""
        if self._judge is not None and self._judge.facts.sequence_length is None:
            self._judge.facts = dataclasses.replace(self._judge.facts, sequence_length=length)

    def step(self, loss: Scalar | None, lr: Scalar | None, grad_norm: Scalar | None) -> None:
        """An optimiser step is done; see `Monitor.step`."""
        if self.monitor is None:
            return
        if self._judge is not None and self._untrained and loss is not None:
            self._judge.hear(float(loss))
        self._untrained = False
        self.monitor.step(loss=loss, lr=lr, grad_norm=grad_norm)

    def news(self) -> dict[str, float]:
        """Readings that were not handed out yet, and the step they are of."""
        metrics = self.metrics()
        if metrics == self._told:
            return {}
        self._told = metrics
        return {**metrics, STEP: float(self._observed)}

    def end(self) -> str:
        """Training is over: say the verdict once, and write what waits."""
        if self.monitor is None:
            return ""
        self.close()
        verdict = self.verdict
        alarm = self._judge is not None and any(d.verdict.alarm for d in self._judge.diagnoses)
        level = logging.WARNING if alarm else logging.INFO
        if verdict:
            _LOG.log(level, "Run %s: %s", self.monitor.run, verdict)
        return verdict

    def close(self) -> None:
        """Write what waits and let go of the model."""
        if self.monitor is not None:
            self.monitor.close()

    def _judged(self, step: int, numbers: Mapping[str, float]) -> Iterable[Alert]:
        self._observed = step
        rule = self._options.get("judge", self._judge)
        try:
            return [] if rule is None else list(rule(step, numbers))
        except Exception as problem:  # the monitor would not call again, and `news` counts on it
            if not self.judge_errors:
                _LOG.warning("%r raised %r at step %d; said once.", rule, problem, step)
            self.judge_errors += 1
            return []

    def _alerted(self, alert: Alert) -> None:
        self._options.get("on_alert", _nothing)(alert)
        self._tell(alert)


def _nothing(_: Alert) -> None:
    pass

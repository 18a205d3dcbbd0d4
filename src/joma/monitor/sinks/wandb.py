"""Edge file for joma[track]: scalars and alerts in a run of W&B."""

import re
from pathlib import Path
from typing import Any, Final

from joma._core.extras import extra
from joma.monitor.sinks.base import AbstractSink, Alert, Entry

with extra("track", packages=("wandb",), purpose="The W&B sink"):
    import wandb

PROJECT: Final = "joma"
_STEP: Final = "joma/step"


class Wandb(AbstractSink):
    """Logs into the run that the process has, without moving its step; else into one of its own.

    In the user's run, numbers wait for the user's next log: W&B drops what is logged at an
    earlier step than the last, and the user's own numbers must not be what is dropped.
    """

    def __init__(self, run: Any = None):
        """A run that is handed over, or that the process has, is not finished here."""
        self._run = run
        self._own = False

    def open(self, run: str, out: Path) -> None:
        """Find the run, or begin one in the folder of the records."""
        self._run = self._run or wandb.run
        if self._run is None:
            out.mkdir(parents=True, exist_ok=True)
            self._own = True
            self._run = wandb.init(
                project=PROJECT,
                name=run,
                id=re.sub(r"[^\w.-]", "-", run),
                resume="allow",
                dir=str(out),
                reinit="create_new",
            )
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("joma/*", step_metric=_STEP)

    def log(self, entry: Entry) -> None:
        """One row of numbers."""
        row = {**entry.metrics, _STEP: entry.step}
        if self._own:
            self._run.log(row, step=entry.step)
        else:
            self._run.log(row, commit=False)

    def alert(self, alert: Alert) -> None:
        """An alert of the run, which W&B may send by mail or chat."""
        _alert(self._run, alert)

    def close(self) -> None:
        """Finish the run, if it is ours."""
        if self._own:
            self._run.finish()

    @staticmethod
    def announce(alert: Alert) -> None:
        """Hand an alert to the run that the process has, if there is one."""
        if wandb.run is not None:
            _alert(wandb.run, alert)


def _alert(run: Any, alert: Alert) -> None:
    levels = {"info": "INFO", "warning": "WARN", "error": "ERROR"}
    text = f"Step {alert.step}: {alert.text}"
    run.alert(title=alert.title, text=text, level=levels[alert.level])


SINK = Wandb

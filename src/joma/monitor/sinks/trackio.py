"""Edge file for joma[track]: scalars and alerts in a run of trackio, on this machine."""

import contextlib
from pathlib import Path
from typing import Any, Final

from joma._core.extras import extra
from joma.monitor.sinks.base import AbstractSink, Alert, Entry

with extra("track", packages=("trackio",), purpose="The trackio sink"):
    import trackio

PROJECT: Final = "joma"
_LEVELS: Final = {
    "info": trackio.AlertLevel.INFO,
    "warning": trackio.AlertLevel.WARN,
    "error": trackio.AlertLevel.ERROR,
}


class Trackio(AbstractSink):
    """Logs into the run that is handed over, or into one of its own in the project `joma`."""

    def __init__(self, run: Any = None):
        """Its current run, trackio knows by thread; that of another must be handed over."""
        self._run = run
        self._own = run is None

    def open(self, run: str, out: Path) -> None:
        """Begin a run, or go on in the one of the same name."""
        if self._own:
            self._run = trackio.init(
                project=PROJECT,
                name=run,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, entry: Entry) -> None:
        """One row of numbers."""
        self._run.log(dict(entry.metrics), step=entry.step)

    def alert(self, alert: Alert) -> None:
        """An alert of the run."""
        level = _LEVELS[alert.level]
        self._run.alert(title=alert.title, text=alert.text, level=level, step=alert.step)

    def close(self) -> None:
        """Finish the run, if it is ours."""
        if self._own:
            self._run.finish()

    @staticmethod
    def announce(alert: Alert) -> None:
        """Hand an alert to the current run of this thread, if there is one."""
        with contextlib.suppress(RuntimeError):  # which is how trackio says that there is none
            text = f"Step {alert.step}: {alert.text}"
            trackio.alert(alert.title, text, level=_LEVELS[alert.level])


SINK = Trackio

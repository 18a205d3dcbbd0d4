"""Edge file for joma[track]: scalars in a TensorBoard event file, alerts as text beside them."""

from pathlib import Path
from typing import Any

from joma._core.extras import extra
from joma.monitor.sinks.base import AbstractSink, Alert, Entry

with extra("track", packages=("tensorboard",), purpose="The TensorBoard sink"):
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(AbstractSink):
    """Writes into `tensorboard/RUN` in the folder of the records, or into a writer of the user."""

    def __init__(self, writer: Any = None):
        """A writer that is handed over is not closed here."""
        self._writer = writer
        self._own = writer is None

    def open(self, run: str, out: Path) -> None:
        """Make the event file."""
        if self._own:
            writer: Any = SummaryWriter(log_dir=str(out / "tensorboard" / run))
            self._writer = writer

    def log(self, entry: Entry) -> None:
        """One point per name."""
        for name, value in entry.metrics.items():
            self._writer.add_scalar(name, value, entry.step)

    def alert(self, alert: Alert) -> None:
        """A text under the title of the alert."""
        self._writer.add_text(f"joma_alert/{alert.title}", alert.text, alert.step)

    def flush(self) -> None:
        """Push it to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Close the event file, if it is ours."""
        if self._own:
            self._writer.close()


SINK = TensorBoard

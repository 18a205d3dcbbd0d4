"""What becomes of readings on rank 0: records, numbers for loggers, alerts."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from joma.monitor import names
from joma.monitor.courier import Courier
from joma.monitor.look import Found
from joma.monitor.sinks import registry
from joma.monitor.sinks.base import AbstractSink, Alert, Entry
from joma.monitor.sinks.parquet import SCALARS, Parquet
from joma.records.schema import OK, Context, Reading, Record

Scalar: TypeAlias = float | int | Tensor
Judge: TypeAlias = Callable[[int, Mapping[str, float]], Iterable[Alert]]

WAIT: Final = 512
"""Losses, learning rates and gradient norms that wait at most for an observation."""
OVERHEAD: Final = "overhead_percent"
SINK_FREE: Final = "attention_entropy_sink_free"
"""What the diagnosis prefers to look at; loggers are not bothered with it."""
GRACE: Final = 10.0
"""Seconds that sinks have to finish when the monitor is closed or the process is told to end."""

_LOG = logging.getLogger("joma.monitor")


class Desk:
    """Rank 0's side of the monitor. Sinks are opened by the first thing that is handed to them."""

    def __init__(
        self,
        run: str,
        out: Path,
        sinks: Iterable[str | AbstractSink],
        config: Mapping[str, Any] | None,
        judge: Judge | None,
        on_alert: Callable[[Alert], None] | None,
    ):
        """`sinks` are further ones; records are written in any case."""
        self.run = run
        self.alerts: deque[Alert] = deque(maxlen=1000)
        self.metrics: dict[str, float] = {}
        self._records = Courier("parquet", Parquet(config), run, out)
        self._couriers = [self._records]
        for number, sink in enumerate(sinks):
            name = sink if isinstance(sink, str) else f"{type(sink).__name__}-{number}"
            made: AbstractSink = registry.load(sink)() if isinstance(sink, str) else sink
            self._couriers.append(Courier(name, made, run, out))
        self._all = tuple(self._couriers)
        self._judge = judge
        self._on_alert = on_alert
        self._known: dict[str, float] = {}
        self._waiting: list[tuple[int, str, Scalar]] = []
        self._since = 0.0
        self._alarmed: set[str] = set()

    @property
    def cpu(self) -> float:
        """CPU seconds of the threads of all sinks."""
        return sum(courier.cpu for courier in self._all)

    def note(self, step: int, scalars: Mapping[str, Scalar | None]) -> None:
        """Keep what is known of a step. A number on another device is not waited for."""
        if not self._waiting:
            self._since = time.monotonic()
        for metric, value in scalars.items():
            if isinstance(value, Tensor):
                # A copy: some loops write into the tensor that they log.
                value = value.detach()
                value = float(value) if value.device.type == "cpu" else value.clone()
            if value is not None:
                self._waiting.append((step, metric, value))
        stale = self._waiting and time.monotonic() - self._since > GRACE
        if stale or len(self._waiting) >= WAIT:
            self.send()

    def send(self) -> None:
        """Hand over what was noted."""
        waiting, self._waiting = self._waiting, []
        records = []
        for (at, metric, _), value in zip(waiting, _numbers(waiting), strict=True):
            self._known[metric] = value
            records.append(
                Record(self.run, float(at), _reading(metric, value), context=Context.TRAIN)
            )
        if records:
            last = waiting[-1][0]
            self._records.put(Entry(last, {}, tuple(records), f"{SCALARS}{last}"))

    def report(
        self,
        step: int,
        found: Sequence[Found],
        batch: Context,
        length: int | None,
        own: Sequence[Reading],
    ) -> None:
        """Hand over the readings of an observation; `own` are those of the monitor about itself."""
        self.send()
        records = [Record(self.run, float(step), reading) for reading in own]
        numbers = {names.name(r): r.value for r in own if r.metric == OVERHEAD}
        for streamed, readings in found:
            context = batch if streamed else Context.WEIGHTS
            size = length if streamed else None
            numbers |= names.flat(readings)
            records += [
                Record(self.run, float(step), r, context=context, sequence_length=size)
                for r in readings
            ]
        self.metrics = numbers
        for courier in self._couriers:
            courier.put(Entry(step, numbers, tuple(records), f"observed/{step}"))
        for alert in self._judged(step, [r for f in found for r in f.readings]):
            self.alert(alert)

    def alert(self, alert: Alert) -> None:
        """Say it: in the log, to the sinks, to the user's callback."""
        self.alerts.append(alert)
        _LOG.warning("Step %d, %s: %s", alert.step, alert.title, alert.text)
        for courier in self._couriers:
            courier.put(alert)
        if self._on_alert is not None:
            try:
                self._on_alert(alert)
            except Exception as problem:
                _LOG.warning("on_alert raised %s: %s", type(problem).__name__, problem)

    def flush(self) -> None:
        """Make everything durable, within some seconds."""
        self.send()
        end = time.monotonic() + GRACE
        for courier in self._couriers:
            courier.flush(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Finish all sinks, within some seconds; what is lost is said."""
        self.send()
        couriers, self._couriers = self._couriers, []
        end = time.monotonic() + GRACE
        for courier in couriers:
            courier.close(max(0.1, end - time.monotonic()))

    def _judged(self, step: int, readings: Sequence[Reading]) -> Iterable[Alert]:
        yield from self._non_finite(step, readings)
        if self._judge is not None:
            beside = names.of_metric(readings, SINK_FREE)
            try:
                yield from list(self._judge(step, self._known | beside | self.metrics))
            except Exception as problem:
                judge, self._judge = self._judge, None
                _LOG.warning("%r raised %s and is not asked again.", judge, repr(problem))

    def _non_finite(self, step: int, readings: Sequence[Reading]) -> Iterable[Alert]:
        for r in readings:
            if r.status.startswith("non-finite") and names.name(r) not in self._alarmed:
                self._alarmed.add(names.name(r))
                text = f"{r.metric} of layer {r.layer} is undefined: {r.status}."
                yield Alert("non-finite values", text, step, "error", r.layer)


def _reading(metric: str, value: float) -> Reading:
    status = f"the {metric.replace('_', ' ')} is not a number" if math.isnan(value) else OK
    return Reading(metric, value, status=status)


def _numbers(waiting: Sequence[tuple[int, str, Scalar]]) -> list[float]:
    """Floats, with one wait for all those on another device."""
    far = [value for _, _, value in waiting if isinstance(value, Tensor)]
    read = iter(torch.stack([f.reshape(()).double() for f in far]).tolist() if far else ())
    return [next(read) if isinstance(v, Tensor) else float(v) for _, _, v in waiting]

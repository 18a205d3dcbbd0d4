"""One file per place that readings go to. Each defines `SINK`, a class made with no arguments."""

from joma._core.registry import Registry

__all__ = ["registry"]

registry = Registry("joma.monitor.sinks", "SINK")

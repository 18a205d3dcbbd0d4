"""Where the workers of a sweep live: one file per engine."""

from joma._core.registry import Registry

__all__ = ["registry"]

registry = Registry("joma.sweep.engines", "ENGINE")

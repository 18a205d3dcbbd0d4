"""Pure functions of tensors, each with the probe that takes it from a model.

Listing names imports nothing heavy; a module is imported when it is asked for.
"""

import importlib
from types import ModuleType

from joma._core.registry import Registry

__all__ = ["registry"]

registry = Registry("joma.metrics", "PROBE")


def __getattr__(name: str) -> ModuleType:
    if not name.startswith("_") and name in registry.names():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *registry.names()]

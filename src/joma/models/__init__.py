"""Models to train: the layer of Eqn. 1, stacks of it, and the small Transformer of Figures 6 and 8.

A module is imported when it is asked for.
"""

import importlib
import pkgutil
from types import ModuleType

__all__ = sorted(m.name for m in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

"""How Transformers learn, while they learn: the JoMA theory, executable and checked.

Everything below is loaded on first use, so `import joma` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from joma._core.errors import JomaError as JomaError
from joma._core.version import __version__ as __version__

if TYPE_CHECKING:
    from joma import theory as theory
    from joma.records.schema import Reading as Reading, Record as Record
    from joma.records.store import load as load

_NAMESPACES = ("theory",)
_NAMES = {
    "Reading": "joma.records.schema",
    "Record": "joma.records.schema",
    "load": "joma.records.store",
}

__all__ = ["JomaError", "Reading", "Record", "__version__", "load", "theory"]


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return importlib.import_module(f"joma.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'joma' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""How Transformers learn, while they learn: the JoMA theory, executable and checked.

Everything below is loaded on first use, so `import joma` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from joma._core.errors import JomaError as JomaError
from joma._core.version import __version__ as __version__

if TYPE_CHECKING:
    from joma import (
        analysis as analysis,
        data as data,
        metrics as metrics,
        models as models,
        theory as theory,
    )
    from joma.metrics.correlation import normalized_correlation as normalized_correlation
    from joma.metrics.entropy import attention_entropy as attention_entropy
    from joma.metrics.invariant import invariant_residual as invariant_residual
    from joma.metrics.rank import stable_rank as stable_rank
    from joma.monitor.attach import watch as watch
    from joma.monitor.monitor import Monitor as Monitor
    from joma.probes.observe import observe as observe
    from joma.probes.tap import tap as tap
    from joma.records.schema import Reading as Reading, Record as Record
    from joma.records.store import load as load
    from joma.sweep.run import Sweep as Sweep

_NAMESPACES = ("analysis", "data", "metrics", "models", "theory")
_NAMES = {
    "Monitor": "joma.monitor.monitor",
    "Reading": "joma.records.schema",
    "Record": "joma.records.schema",
    "Sweep": "joma.sweep.run",
    "attention_entropy": "joma.metrics.entropy",
    "invariant_residual": "joma.metrics.invariant",
    "load": "joma.records.store",
    "normalized_correlation": "joma.metrics.correlation",
    "observe": "joma.probes.observe",
    "stable_rank": "joma.metrics.rank",
    "tap": "joma.probes.tap",
    "watch": "joma.monitor.attach",
}

__all__ = ["JomaError", "__version__", *_NAMESPACES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return importlib.import_module(f"joma.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'joma' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

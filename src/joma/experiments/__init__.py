"""One file per experiment: what it runs and what it may claim. `joma ls experiments` lists them."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma._core.registry import Registry

if TYPE_CHECKING:
    from joma.experiments import _ledger as _ledger, _runner as _runner

__all__ = ["OUT", "registry"]

OUT = Path("joma-runs")
"""Where records go unless the caller says otherwise."""

registry = Registry("joma.experiments", "EXPERIMENT")


def __getattr__(name: str) -> Any:
    if name in ("_ledger", "_runner"):  # they import Arrow: loaded on first use
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

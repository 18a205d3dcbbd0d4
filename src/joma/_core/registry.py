"""A folder is a registry: the file name is the plug-in's name.

`Registry("joma.experiments", "EXPERIMENT")` finds `joma/experiments/fig4.py` under
the name `"fig4"` and reads its `EXPERIMENT` object, importing nothing else. There is
no table to edit. Other packages join through the entry-point group of the same name.
"""

import difflib
import functools
import importlib
import importlib.util
import pkgutil
import sys
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from joma._core.errors import JomaError, UnknownNameError


def closest(name: str, names: list[str]) -> str:
    """The end of an error message: a close name, if any, and all that is there."""
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Available: {', '.join(names) or 'none'}."


class Registry:
    """The plug-ins of one folder, found by file name and imported one at a time."""

    def __init__(self, package: str, attribute: str):
        """`package` holds one module per plug-in; each defines `attribute`."""
        self.package = package
        self.attribute = attribute

    def names(self) -> list[str]:
        """Every available name, sorted. Imports none of the plug-ins."""
        return sorted(self._local() | {e.name for e in self._external()})

    def load(self, name: str) -> Any:
        """Import and return one plug-in. Two plug-ins of one name are refused."""
        local = name in self._local()
        external = [e for e in self._external() if e.name == name]
        if local + len(external) > 1:
            owners = [self.package] * local + [e.value for e in external]
            raise JomaError(
                f"{len(owners)} plug-ins of {self.package} are named {name!r}: "
                f"{', '.join(owners)}. Rename or uninstall all but one."
            )
        if local:
            return getattr(importlib.import_module(f"{self.package}.{name}"), self.attribute)
        if external:
            return external[0].load()
        kind = self.attribute.lower()
        raise UnknownNameError(f"No {kind} named {name!r}.{closest(name, self.names())}")

    def _local(self) -> set[str]:
        try:
            spec = importlib.util.find_spec(self.package)
        except ModuleNotFoundError:
            spec = None
        if spec is None:  # a room of the floor plan that is not built yet
            return set()
        assert spec.submodule_search_locations, f"{self.package} is not a package"
        modules = pkgutil.iter_modules(spec.submodule_search_locations)
        found = {m.name for m in modules if not m.ispkg}
        return {name for name in found if name != "base" and not name.startswith("_")}

    def _external(self) -> EntryPoints:
        return _entry_points(self.package, tuple(sys.path))


@functools.cache
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Of one group, as installed along `path`: the search reads a file of every package."""
    del path  # it is there to be the key
    return entry_points(group=group)

"""A folder of modules that are imported when they are asked for."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType


def lazy(
    package: str, path: Iterable[str]
) -> tuple[list[str], Callable[[str], ModuleType], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package, for its `__init__.py`.

    Names that begin with an underscore are left out.

    Example:
        >>> import joma
        >>> lazy("joma.theory", joma.theory.__path__)[1]("linear").__name__
        'joma.theory.linear'
    """
    names = sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))

    def asked(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return names, asked, lambda: names

"""Closed forms and flows of the paper, one file per result, in float64 NumPy. No torch here.

`joma.theory.linear` is Theorem 2, `joma.theory.hblt` is Theorem 5, and so on; the paper map in
the docs lists them all. A module is imported when it is asked for.
"""

from joma._core.folder import lazy

__all__, __getattr__, __dir__ = lazy(__name__, __path__)

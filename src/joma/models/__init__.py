"""Models to train: the layer of Eqn. 1, stacks of it, and the small Transformer of Figures 6 and 8.

A module is imported when it is asked for.
"""

from joma._core.folder import lazy

__all__, __getattr__, __dir__ = lazy(__name__, __path__)

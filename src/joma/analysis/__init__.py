"""What records say: curves and their shape, a diagnosis, theory beside measurement. No torch.

A module is imported when it is asked for.
"""

from joma._core.folder import lazy

__all__, __getattr__, __dir__ = lazy(__name__, __path__)

"""What models are trained on: token classes, latent trees, clusters, text and source code.

Every sampler is a pure function of a frozen config and a seed (or a `torch.Generator`): the same
seed gives the same tensors, and torch's global generator is left alone. A module is imported when
it is asked for.
"""

from joma._core.folder import lazy

__all__, __getattr__, __dir__ = lazy(__name__, __path__)

"""Stable rank of a gradient: how few directions one step of training moves.

A gradient of low stable rank can be projected to few dimensions before the optimiser sees it, as
GaLore does (Zhao et al., 2024); JoMA's dynamics say why it should be low, and `stable_rank` says so
with bounds.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from joma.metrics.rank import reading, stable_rank
from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.records.schema import Reading


class GradientRankProbe(AbstractWeightProbe):
    """Certified stable rank of the gradient of a lower MLP matrix.

    Gradients turn faster than weights, so the start kept from the last step helps less; it costs
    nothing, and the certificate does not depend on it.
    """

    need: ClassVar = Need.MLP_IN_GRADIENT

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        """One reading of `gradient_stable_rank`; `nan` with its reason for a zero gradient."""
        found = stable_rank(tensors["weight"], warm=warm)
        return [reading(place, "gradient_stable_rank", found)], found.warm


PROBE = GradientRankProbe()

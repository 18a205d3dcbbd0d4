"""Coherence of the token embeddings: how far they are from the orthonormal ones of Theorem 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from joma.metrics.coherence import coherence, coherence_readings
from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.records.schema import Reading


@dataclass(frozen=True, kw_only=True)
class EmbeddingCoherenceProbe(AbstractWeightProbe):
    """Coherence of the token embeddings of a model. Tokens padded with zeros do not take part."""

    need: ClassVar[Need] = Need.EMBEDDING
    limit: int | None = 2048

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        found = coherence(tensors["weight"], limit=self.limit)
        return list(coherence_readings(place, "embedding_coherence", found)), None


PROBE = EmbeddingCoherenceProbe()

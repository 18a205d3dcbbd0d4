"""The contract between a driver (monitor, sweep, experiment) and a probe.

A probe is a fold. It looks at a tensor where that tensor is, keeps a few numbers, and
reads them off at the end. Nothing large is ever kept: an attention probe sees the
*call* (queries and keys), never the attention matrix. A driver reads `need`, shows the
probe exactly that, and never asks which probe it is talking to.
"""

import abc
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.records.schema import Reading

Sums: TypeAlias = Mapping[str, Tensor]
"""Statistics in float64. Batches, ranks and workers are combined by adding, entry by entry;
entries named `max:…` by maximum. `joma.probes.sums.combine` does both."""


class Need(enum.Enum):
    """What a driver must show to a probe. The comment says what arrives."""

    ATTENTION = "attention"  # stream: an `AttentionCall` per attention module
    HIDDEN = "hidden"  # stream: a `HiddenCall` per lower MLP matrix
    MLP_IN = "mlp_in"  # weights: {"weight": lower MLP matrix, (hidden, embed)}
    MLP_IN_GRADIENT = "mlp_in_gradient"  # weights: {"weight": its gradient, (hidden, embed)}
    MLP_OUT = "mlp_out"  # weights: {"weight": upper MLP matrix, (embed, hidden)}
    MLP_UNITS = "mlp_units"  # weights of one MLP, see below
    HEADS = "heads"  # weights of one attention, cut into heads, see below
    EMBEDDING = "embedding"  # weights: {"weight": (vocabulary, embed)}, whole model

    # MLP_UNITS: {"in": (hidden, embed), "in_bias"?: (hidden,), "out": (embed, hidden), "gate"?:
    #   (hidden, embed)}. Of a gated MLP, "in" is the matrix that the gate multiplies.
    # HEADS: {"query": (head, width, embed), "key", "value": (kv_head, width, embed),
    #   "output": (head, embed, width), "query_bias"?: (head, width), "key_bias"?, "value_bias"?:
    #   (kv_head, width), "rotary"?: (pairs, 2)}. Query heads share keys in consecutive groups.
    #   "rotary" lists the coordinates of a head that positions turn together, and is empty if
    #   there are none; absent if it is not known, or if queries and keys are normalised.


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a model a tensor or a call stands; goes into each reading."""

    layer: int | None = None
    site: str | None = None
    """`mlp.up`, `mlp.gate`, `self`, `decoder.cross`, …; absent where a block has only one."""
    expert: int | None = None

    def reading(self, metric: str, value: float, **more: Any) -> Reading:
        """A reading at this place."""
        return Reading(metric, value, layer=self.layer, site=self.site, expert=self.expert, **more)


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One softmax-attention call, as it happens. Valid only during `observe`.

    Scores are `scale * q . k`, soft-capped if asked, plus `bias`, over the keys that `causal`,
    `window`, `mask` and `cu_seqlens` leave visible. Query `i` stands at key position
    `i + keys - queries`, as in decoding with a cache.
    """

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv_head key width"]
    """`head` is a multiple of `kv_head`; query heads share keys in consecutive groups."""
    scale: float
    causal: bool = False
    window: int | None = None
    """A query sees at most this many keys, itself included, counted back from its position."""
    mask: Bool[Tensor, "#batch #head #query key"] | None = None
    """True where a key may be seen; combined with `causal` and `window`."""
    bias: Float[Tensor, "#batch #head #query key"] | None = None
    """Added to the scores (ALiBi, T5); -inf hides a key."""
    cu_seqlens: Int[Tensor, " documents_plus_one"] | None = None
    """Borders of documents packed into one row (batch 1); documents do not see each other."""
    softcap: float | None = None
    """Scores become `softcap * tanh(scores / softcap)` before bias and mask."""
    sinks: Float[Tensor, " head"] | None = None
    """A learned logit per head that takes probability and returns nothing (GPT-OSS)."""


@dataclass(frozen=True, kw_only=True)
class HiddenCall:
    """One pass through a lower MLP matrix, as it happens. Valid only during `observe`."""

    inputs: Float[Tensor, "*rows embed"]
    preactivation: Float[Tensor, "*rows hidden"]


class AbstractStreamProbe(abc.ABC):
    """Watches activations. Stateless: what it learned is in the sums it returns."""

    need: ClassVar[Need]

    @abc.abstractmethod
    def observe(self, seen: Any) -> Sums:
        """Reduce one call to additive sums. Never returns anything of activation size."""

    @abc.abstractmethod
    def readings(self, place: Place, sums: Sums) -> Iterator[Reading]:
        """Turn the added-up sums of one place into readings."""


class AbstractWeightProbe(abc.ABC):
    """Measures parameters. What helps the next measurement is handed back, not hidden."""

    need: ClassVar[Need]

    @abc.abstractmethod
    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        """Readings of one place, and a start for the same place at the next step.

        The order of the matrix axes is `(out, in)`, whatever the model stores.
        """


WEIGHT_NEEDS: Final = frozenset(Need) - {Need.ATTENTION, Need.HIDDEN}

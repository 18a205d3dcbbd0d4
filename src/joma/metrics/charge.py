r"""The conserved charges of each attention head, and how far they drifted since a reference.

Gradient flow keeps $W_QW_Q^\top - W_KW_K^\top$ and $W_VW_V^\top - W_O^\top W_O$ of every head, in
any softmax Transformer and for any loss; see `joma.theory.charges`, whose definitions these are.
SGD drifts in proportion to its steps, weight decay shrinks them, Adam moves them freely: the
drift says how far a run is from the flow that the theory describes.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Float64, Integer
from torch import Tensor

from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.records.schema import Reading


class Charge(NamedTuple):
    """The charge of each key/value head, and the squared length of the weights it is made of."""

    value: Float64[Tensor, "kv_head width width"]
    weight: Float64[Tensor, " kv_head"]


def qk_charge(
    query: Float[Tensor, "head width embed"],
    key: Float[Tensor, "kv_head width embed"],
    query_bias: Float[Tensor, "head width"] | None = None,
    key_bias: Float[Tensor, "kv_head width"] | None = None,
) -> Charge:
    r"""$\sum W_QW_Q^\top - W_KW_K^\top$ of each key head, over the query heads that share it.

    Biases are appended to the weights as a column. Rotary encodings conserve only part of this
    (`conserved_part`), normalised queries and keys only its trace.
    """
    return _difference(_grams(query, query_bias), _grams(key, key_bias))


def vo_charge(
    value: Float[Tensor, "kv_head width embed"],
    output: Float[Tensor, "head embed width"],
    value_bias: Float[Tensor, "kv_head width"] | None = None,
) -> Charge:
    r"""$W_VW_V^\top - \sum W_O^\top W_O$ of each value head; the output bias takes no part."""
    negative, weight = _difference(_grams(output.mT, None), _grams(value, value_bias))
    return Charge(-negative, weight)


def conserved_part(
    charge: Float64[Tensor, "kv_head width width"], rotary: Integer[Tensor, "pairs 2"]
) -> Float64[Tensor, "kv_head numbers"]:
    """The numbers in a QK charge that the flow keeps when positions turn pairs of coordinates.

    The trace of each pair, and the whole block of the coordinates that do not turn
    (`theory.charges.rotary_charge`): everything, if there are no pairs.
    """
    rotary = rotary.long()
    pairs = charge.diagonal(dim1=1, dim2=2)[:, rotary].sum(-1)
    still = torch.ones(charge.shape[1], dtype=torch.bool, device=charge.device)
    still[rotary.flatten()] = False
    return torch.cat([pairs, charge[:, still][:, :, still].flatten(1)], 1)


class HeadChargeProbe(AbstractWeightProbe):
    """Charges of each head and their drift, as a share of the squared length of its weights.

    The first measurement of a place is the reference and has no drift; it is handed back and has
    to be passed on. `head` counts key heads, to which the charges belong when queries share keys.

    What is conserved of the QK charge depends on what positions and normalisation do to queries
    and keys. Its trace survives all of them and is always reported; `qk_charge` is if the tensors
    say what is rotated.
    """

    need: ClassVar[Need] = Need.HEADS

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        qk = qk_charge(
            tensors["query"], tensors["key"], tensors.get("query_bias"), tensors.get("key_bias")
        )
        vo = vo_charge(tensors["value"], tensors["output"], tensors.get("value_bias"))
        now = {
            "qk_trace": qk.value.diagonal(dim1=1, dim2=2).sum(1, keepdim=True),
            "vo_charge": vo.value.flatten(1),
        }
        if "rotary" in tensors:
            now["qk_charge"] = conserved_part(qk.value, tensors["rotary"])
        moved = {} if warm is None else {f"{n}_drift": drift(now[n], warm[n]) for n in now}
        weights = {"qk": qk.weight.tolist(), "vo": vo.weight.tolist()}
        readings = [
            relative(place, metric, length, weights[metric[:2]][head], head=head)
            for metric, numbers in (now | moved).items()
            for head, length in enumerate(numbers.square().sum(1).sqrt().tolist())
        ]
        return readings, now if warm is None else warm


PROBE = HeadChargeProbe()


def drift(
    now: Float64[Tensor, "*shape"], reference: Float64[Tensor, "*other"]
) -> Float64[Tensor, "*shape"]:
    """What was added to a charge since the reference."""
    if now.shape != reference.shape:
        raise ValueError(
            f"The reference charge has shape {tuple(reference.shape)}, this one "
            f"{tuple(now.shape)}: they belong to different models. Start again without it."
        )
    return now - reference.to(now.device)


def relative(
    place: Place, metric: str, length: float, weight: float, head: int | None = None
) -> Reading:
    """The length of a charge as a share of the weights it is made of."""
    share = length / weight if weight > 0 else math.nan
    if math.isfinite(share):
        return place.reading(metric, share, head=head)
    status = "all weights are zero" if weight == 0 else "not finite"
    return place.reading(metric, math.nan, status=status, head=head)


def _difference(shared: Float64[Tensor, "head width width"], one: Tensor) -> Charge:
    """Grams of heads, added up in the groups that share one other head, minus the other's gram."""
    heads, kv_heads = len(shared), len(one)
    if not kv_heads or heads % kv_heads or shared.shape[1:] != one.shape[1:]:
        raise ValueError(
            "Heads must be a multiple of the key/value heads, of the same width; got "
            f"{heads} of width {shared.shape[1]} and {kv_heads} of width {one.shape[1]}."
        )
    added = shared.reshape(kv_heads, -1, *one.shape[1:]).sum(1)
    weight = (added + one).diagonal(dim1=1, dim2=2).sum(1)
    return Charge(added - one, weight)


def _grams(
    weight: Float[Tensor, "head width embed"], bias: Float[Tensor, "head width"] | None
) -> Float64[Tensor, "head width width"]:
    # Head by head: a drift is a small difference, which needs float64, but never of all weights.
    grams = torch.stack([(w := one.detach().double()) @ w.mT for one in weight])
    if bias is None:
        return grams
    bias = bias.detach().double()
    return grams + bias[:, :, None] * bias[:, None, :]

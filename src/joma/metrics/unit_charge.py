r"""The conserved charge of each MLP unit, $\|w_{in}\|^2 + b^2 - p\,\|w_{out}\|^2$, and its drift.

Exact under gradient flow for ReLU, leaky ReLU and, with `degree=2`, squared ReLU; in a gated MLP
for the up and down matrices, whatever the gate. GELU and SiLU have no such charge: there the
drift is no measure of the optimiser. See `joma.theory.charges.relu_charge`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from joma.metrics.charge import drift, relative
from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.records.schema import Reading

BLOCK: Final = 2**16
"""Numbers that are turned into float64 at once; they stay in cache."""


class UnitCharge(NamedTuple):
    """The charge of each unit, and the squared length of the weights it is made of."""

    value: Float64[Tensor, " hidden"]
    weight: Float64[Tensor, " hidden"]


def unit_charge(
    w_in: Float[Tensor, "hidden embed"],
    w_out: Float[Tensor, "out hidden"],
    b_in: Float[Tensor, " hidden"] | None = None,
    *,
    degree: float = 1.0,
) -> UnitCharge:
    """In/out balance of each unit of an MLP whose activation is homogeneous of that degree."""
    inner = _squares(w_in, 1)
    if b_in is not None:
        inner = inner + b_in.detach().double().square()
    outer = degree * _squares(w_out, 0)
    return UnitCharge(inner - outer, inner + outer)


@dataclass(frozen=True, kw_only=True)
class UnitChargeProbe(AbstractWeightProbe):
    """Length of the vector of unit charges and of its drift, as a share of the weights.

    The first measurement of a place is the reference and has no drift; it is handed back and
    has to be passed on.
    """

    need: ClassVar[Need] = Need.MLP_UNITS
    degree: float = 1.0
    """Of the activation: 1 for ReLU, 2 for squared ReLU. Gated units always have 1."""

    def measure(
        self, place: Place, tensors: Mapping[str, Tensor], warm: Any = None
    ) -> tuple[list[Reading], Any]:
        degree = 1.0 if "gate" in tensors else self.degree  # linear in what a gate multiplies
        now, weight = unit_charge(
            tensors["in"], tensors["out"], tensors.get("in_bias"), degree=degree
        )
        whole = _length(weight)
        readings = [relative(place, "unit_charge", _length(now), whole)]
        if warm is None:
            return readings, now
        moved = _length(drift(now, warm))
        return [*readings, relative(place, "unit_charge_drift", moved, whole)], warm


PROBE = UnitChargeProbe()


def _squares(weight: Tensor, axis: int) -> Float64[Tensor, " hidden"]:
    """Sums of squares along an axis, in float64: a drift is a small difference of them."""
    blocks = torch.split(weight.detach(), max(1, BLOCK // weight.shape[1]))
    sums = [block.double().square().sum(axis) for block in blocks]
    return torch.cat(sums) if axis == 1 else torch.stack(sums).sum(0)


def _length(numbers: Float64[Tensor, " hidden"]) -> float:
    return numbers.square().sum().sqrt().item()

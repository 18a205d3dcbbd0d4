import math

import pytest
import torch

from joma.metrics.gradient_rank import PROBE
from joma.probes.base import Need, Place
from joma.records.schema import Bound


def test_gradient_of_one_sample_has_stable_rank_one():
    """A gradient of a linear layer is a sum of outer products, one per sample."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(6, 4, bias=False)
    layer(torch.randn(1, 6, generator=generator)).square().sum().backward()
    (reading,), _ = PROBE.measure(Place(layer=2), {"weight": layer.weight.grad})
    assert PROBE.need is Need.MLP_IN_GRADIENT
    assert (reading.metric, reading.layer) == ("gradient_stable_rank", 2)
    assert reading.value == pytest.approx(1.0, rel=1e-6)  # float32 gradient
    assert reading.bound == Bound.CERTIFIED


def test_zero_gradient_is_nan_with_its_reason():
    (reading,), _ = PROBE.measure(Place(layer=0), {"weight": torch.zeros(3, 3)})
    assert math.isnan(reading.value) and reading.status == "zero matrix"

"""Every metric that is installed takes readings from a live model, through the one way in."""

import importlib
import math

import pytest
import torch

from joma.metrics import registry
from joma.probes.base import WEIGHT_NEEDS
from joma.probes.observe import observe
from unit.probes.zoo import batch, build

pytestmark = pytest.mark.hf


def probes():
    modules = (importlib.import_module(f"joma.metrics.{name}") for name in registry.names())
    found = (getattr(module, "PROBE", None) for module in modules)
    return [probe for probe in found if probe is not None]  # some metrics need two models or data


@pytest.mark.parametrize("name", ["gpt_neox", "gpt2", "llama", "mixtral", "gpt_oss", "t5", "bloom"])
@pytest.mark.filterwarnings("ignore::joma.probes.attach.ObservationWarning")
def test_all_metrics_read_a_live_model(name):
    model, inputs = build(name), batch(name)
    before = torch.get_rng_state()
    for probe in probes():
        with observe(model, [probe]) as seen:
            model(**inputs)[0].float().cos().mean().backward()
        readings = list(seen.readings())
        assert readings, probe
        assert all(math.isfinite(r.value) or r.status != "ok" for r in readings)
        if probe.need in WEIGHT_NEEDS:
            again = list(seen.readings())
            assert len(again) >= len(readings)
    assert torch.equal(before, torch.get_rng_state())

"""Every family, tiny: what is observed is what the model computes, and nothing is left behind."""

import contextlib
from collections import defaultdict

import pytest
import torch
from torch.overrides import TorchFunctionMode

from joma.probes import hidden
from joma.probes.attach import ObservationWarning
from joma.probes.observe import observe
from joma.probes.weights import Weights, place_of
from unit.probes.zoo import (
    BIDIRECTIONAL,
    EMBED,
    OUTSIDE_THE_INTERFACE,
    ZOO,
    DenseEntropy,
    Recorder,
    batch,
    build,
    eager_attentions,
    entropy,
)

pytestmark = pytest.mark.hf

SQUARE = {
    "gpt_neox": "intermediate_size",
    "opt": "ffn_dim",
    "gpt2": "n_inner",
    "llama": "intermediate_size",
    "phi": "intermediate_size",
    "phi3": "intermediate_size",
    "mixtral": "intermediate_size",
    "gpt_oss": "intermediate_size",
    "bert": "intermediate_size",
    "distilbert": "hidden_dim",
    "vit": "intermediate_size",
    "t5": "d_ff",
    "gptj": "n_inner",
    "gpt_neo": "intermediate_size",
}
"""Families whose hidden width is an argument, and its name."""

# float32 attention against float32 attention: 1e-5 nats is the bar of the project.
TOLERANCE = 1e-5


def says_so(name):
    """Fallbacks announce themselves; the direct way is silent."""
    outside = ZOO[name][0] in OUTSIDE_THE_INTERFACE
    if not outside:
        return contextlib.nullcontext()
    return pytest.warns(ObservationWarning, match="through the functions it calls")


def expected_entropy(name, attentions, inputs):
    """(layer, site) -> mean entropy per head by eager attention, without fully masked rows."""
    expected = {}
    for (layer, site), probabilities in attentions.items():
        rows = entropy(probabilities)
        counted = torch.ones_like(rows, dtype=torch.bool)
        if site is None and name not in BIDIRECTIONAL:
            counted = inputs["attention_mask"].bool()[:, None].expand_as(rows)
        expected[layer, site] = (rows * counted).sum((0, 2)) / counted.sum((0, 2))
    return expected


@pytest.mark.parametrize("name", ZOO)
def test_entropy_equals_eager_with_left_padding(name):
    entropy_probe = pytest.importorskip("joma.metrics.entropy").PROBE
    model, inputs = build(name), batch(name)
    expected = expected_entropy(name, eager_attentions(model, inputs), inputs)
    probes = [DenseEntropy(), entropy_probe]
    before = model(**inputs)[0]
    with says_so(name), observe(model, probes) as seen:
        during = model(**inputs)[0]
    assert seen.family == ZOO[name][0]
    assert torch.equal(before, during)
    assert torch.equal(before, model(**inputs)[0])
    found = defaultdict(list)
    for reading in seen.streamed():
        found[reading.metric, reading.layer, reading.site].append(reading.value)
    for (layer, site), values in expected.items():
        for metric in ("entropy", "attention_entropy"):
            got = torch.tensor(found[metric, layer, site], dtype=torch.float64)
            torch.testing.assert_close(got, values, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "square"), [(n, False) for n in ZOO] + [(n, True) for n in SQUARE]
)
def test_found_matrix_maps_the_input_to_the_preactivation(name, square):
    more = {SQUARE[name]: EMBED} if square else {}  # where shapes do not tell the transpose
    model, inputs, recorder = build(name, **more), batch(name), Recorder()
    observation = observe(model, [])
    weights = Weights(model, observation.anatomy)
    with hidden.watching(model, observation.anatomy, weights, recorder), torch.no_grad():
        model(**inputs)
    located = [matrix for mlp in observation.anatomy.mlps for matrix in mlp.lower]
    assert recorder.calls
    for matrix in located:
        if place_of(matrix) not in recorder.calls:
            assert matrix.expert is not None  # no token was routed to this expert
            continue
        call = recorder.calls[place_of(matrix)]
        weight, bias = weights.matrix(matrix), weights.bias(matrix)
        bias = 0 if bias is None else bias
        scale = call.preactivation.abs().max()
        right = (call.inputs @ weight.T + bias - call.preactivation).abs().max()
        assert right <= TOLERANCE * scale
        if weight.shape[0] == weight.shape[1]:
            wrong = (call.inputs @ weight + bias - call.preactivation).abs().max()
            assert wrong > 0.1 * scale
        else:
            assert weight.shape == (call.preactivation.shape[-1], call.inputs.shape[-1])


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_see_what_their_own_loop_computes(name, monkeypatch):
    model, inputs, recorder = build(name), batch(name), Recorder()
    model.set_experts_implementation("eager")
    anatomy = observe(model, []).anatomy
    experts, fused = model.model.layers[0].mlp.experts, []
    if name == "gpt_oss":
        gate = experts._apply_gate
        monkeypatch.setattr(experts, "_apply_gate", lambda x: (fused.append(x), gate(x))[1])
        halves = lambda whole: (whole[..., ::2], whole[..., 1::2])  # noqa: E731
    else:
        forward = experts.forward
        monkeypatch.setattr(experts, "forward", lambda *a: spied(fused, forward, *a))
        halves = lambda whole: whole.chunk(2, -1)  # noqa: E731
    with hidden.watching(model, anatomy, Weights(model, anatomy), recorder), torch.no_grad():
        model(**inputs)
    calls = {place: call for place, call in recorder.calls.items() if place.layer == 0}
    used = sorted({place.expert for place in calls})
    assert len(used) == len(fused)
    for place, call in calls.items():
        expected = halves(fused[used.index(place.expert)])[place.site == "mlp.up"]
        torch.testing.assert_close(
            call.preactivation.sort(0).values, expected.sort(0).values, rtol=1e-5, atol=1e-5
        )


def spied(found, function, *args):
    with Spy(found):
        return function(*args)


class Spy(TorchFunctionMode):
    """Records the lower products of a loop over experts: every other linear map."""

    def __init__(self, found):
        super().__init__()
        self.found, self.count = found, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.linear:
            self.found += [output] if self.count % 2 == 0 else []
            self.count += 1
        return output

"""An attachment that would see something else than the model computes is not used."""

import pytest
import torch
from torch import nn

from joma.probes import coverage, functions
from joma.probes.attach import ObservationWarning
from joma.probes.base import Place
from joma.probes.observe import observe
from unit.probes.zoo import DenseEntropy, batch, build, eager_attentions, entropy

pytestmark = pytest.mark.hf
hf = pytest.importorskip("joma.probes.hf", exc_type=ImportError)

# float32 against float32.
TOLERANCE = 1e-5


def interface_verdict(model):
    """What the trial says of the interface, whatever the model says of itself."""
    modules = observe(model, [])._attachment.attention_modules()
    return coverage.verdict(
        model, hf.example(model), modules, lambda judge: hf.watching(model, modules, judge)
    )


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert", "t5", "vit"])
def test_the_interface_passes_where_it_is_used(name):
    assert interface_verdict(build(name)) is None


@pytest.mark.parametrize("name", ["falcon", "bloom", "gptj", "gpt_neo", "mpt", "codegen"])
def test_a_model_that_never_calls_the_interface_is_found_out(name):
    assert interface_verdict(build(name)) is not None


def register(name, function):
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)


@pytest.fixture
def own_attention():
    """Register attention functions of a user; they are gone after the test."""
    pytest.importorskip("transformers")
    from transformers import AttentionInterface, AttentionMaskInterface

    names = []

    def add(name, function):
        names.append(name)
        register(name, function)

    yield add
    for name in names:
        AttentionInterface._global_mapping.pop(name)
        AttentionMaskInterface._global_mapping.pop(name)


def test_a_user_s_own_implementation_is_wrapped_not_replaced(own_attention):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    ran = []

    def mine(module, *args, **kwargs):
        ran.append(module.config._attn_implementation)
        return sdpa_attention_forward(module, *args, **kwargs)

    own_attention("mine", mine)
    model, inputs = build("llama"), batch("llama")
    model.set_attn_implementation("mine")
    with observe(model, [DenseEntropy()]) as seen:
        ran.clear()
        model(**inputs)
        assert ran == ["mine", "mine"]  # called once a layer, under its own name
    assert seen.plan().route == "interface"
    assert model.config._attn_implementation == "mine"


def test_an_implementation_that_means_something_else_is_found_out(own_attention):
    def blind(module, query, key, value, attention_mask=None, **kwargs):
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        scores = kwargs["scaling"] * query @ key.mT  # forgets the mask
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    own_attention("blind", blind)
    model, inputs = build("llama"), batch("llama")
    model.set_attn_implementation("blind")
    assert "explains its output only" in interface_verdict(model)
    with (
        pytest.warns(ObservationWarning, match="through the functions it calls: layer 0"),
        observe(model, [DenseEntropy()]) as seen,
    ):
        model(**inputs)
    bidirectional = max(r.value for r in seen.streamed() if r.layer == 0)
    assert bidirectional > 1.9  # near ln 10: this model sees all keys, and so does the observer


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask")
def test_block_masks_of_flex_attention_are_read():
    model, inputs = build("llama", "flex_attention", head_dim=16), batch("llama")
    probabilities = eager_attentions(model, inputs)
    real = inputs["attention_mask"].bool()[:, None]
    eager = torch.compiler.set_stance("force_eager")
    with eager, torch.no_grad(), observe(model, [DenseEntropy()]) as seen:  # no backward on CPU
        model(**inputs)
    assert seen.plan().route == "interface"
    for layer in range(2):
        expected = (entropy(probabilities[layer, None]) * real).sum((0, 2)) / real.sum()
        found = [r.value for r in seen.streamed() if r.layer == layer]
        assert found == pytest.approx(expected.tolist(), abs=TOLERANCE)


def test_gpt2_that_reorders_its_products_falls_back_and_is_right():
    model = build("gpt2", "eager", reorder_and_upcast_attn=True)
    inputs = batch("gpt2", padding=0)
    probabilities = eager_attentions(model, inputs)
    with (
        pytest.warns(ObservationWarning, match="through the functions it calls"),
        observe(model, [DenseEntropy()]) as seen,
    ):
        model(**inputs)
    for layer in range(2):
        expected = entropy(probabilities[layer, None]).mean((0, 2))
        found = [r.value for r in seen.streamed() if r.layer == layer]
        assert found == pytest.approx(expected.tolist(), abs=TOLERANCE)


class SinkAttention(nn.Module):
    """Written-out attention with one more column that takes probability and returns nothing."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.sink = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        sink = self.sink[None, :, None, None].expand(len(x), -1, x.shape[1], 1)
        weights = torch.cat([q @ k.mT, sink], -1).softmax(-1)[..., :-1]
        return (weights @ v).transpose(1, 2).flatten(-2)


def test_a_softmax_with_a_sink_is_refused_when_seen_from_outside():
    attention = SinkAttention()
    judge = coverage.Judge()
    with functions.watching(attention, {attention: Place(0)}, judge):
        attention(torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0)))
    assert not judge.calls
    assert "softmax over 6 columns" in judge.problems[Place(0)]


def test_an_unobservable_model_is_refused_with_a_way_out():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.ModuleDict({"attn": SinkAttention()})])

        def forward(self, x):
            return self.layers[0]["attn"](x)

    with (
        pytest.raises(coverage.CoverageError, match=r"Opaque cannot be observed.*joma\.tap"),
        observe(Opaque(), [DenseEntropy()], example={"x": torch.zeros(1, 5, 8)}),
    ):
        pass


def test_an_example_that_does_not_run_is_an_error_if_it_was_given():
    model = build("llama")
    with (
        pytest.raises(
            coverage.ExampleError, match="LlamaForCausalLM does not run on the small batch"
        ),
        observe(model, [DenseEntropy()], example={"words": torch.zeros(1)}),
    ):
        pass


def test_a_model_that_cannot_be_tried_says_so(monkeypatch):
    monkeypatch.setattr(hf, "example", lambda _: None)
    model, inputs = build("llama"), batch("llama")
    with pytest.warns(ObservationWarning, match="was not tried"), observe(model, [DenseEntropy()]):
        model(**inputs)
    with observe(model, [DenseEntropy()], check=False):  # as was asked
        model(**inputs)


def test_the_trial_leaves_gradients_buffers_and_modes_alone():
    model = build("llama").train()
    model.model.layers[0].eval()
    model(**batch("llama"))[0].mean().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    state = torch.get_rng_state()
    assert observe(model, [DenseEntropy()]).plan().route == "interface"
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))
    assert modes == [m.training for m in model.modules()]
    assert torch.equal(state, torch.get_rng_state())

"""Weight probes are shown the matrices that the model uses, in one orientation."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from joma._core.errors import JomaError
from joma.architectures.base import QuantisedWeightsError
from joma.probes import live
from joma.probes.attach import ObservationWarning
from joma.probes.base import AbstractWeightProbe, Need, Place
from joma.probes.observe import observe
from unit.probes.zoo import EMBED, HEADS, ZOO, DenseEntropy, Recorder, batch, build

# The same products in another order of additions.
TOLERANCE = 1e-5


class Shapes(AbstractWeightProbe):
    """Reads the number of rows, and counts how often it was given its own warm start."""

    def __init__(self, need):
        self.need = need
        self.shown = {}

    def measure(self, place, tensors, warm=None):
        self.shown[place] = dict(tensors)
        return [place.reading("visits", float(warm or 0))], (warm or 0) + 1


class Lower(Shapes):
    need: ClassVar = Need.MLP_IN

    def __init__(self):
        super().__init__(Need.MLP_IN)


def shown(model, need):
    probe = Shapes(need)
    list(observe(model, [probe]).measured())
    return probe.shown


@pytest.mark.hf
@pytest.mark.parametrize("name", ["gpt2", "llama", "phi3", "mixtral", "gpt_oss", "t5"])
def test_lower_and_upper_matrices_undo_each_other_s_shape(name):
    model = build(name)
    lower, upper = shown(model, Need.MLP_IN), shown(model, Need.MLP_OUT)
    assert {t["weight"].shape[1] for t in lower.values()} == {EMBED}
    assert {t["weight"].shape[0] for t in upper.values()} == {EMBED}
    for place in upper:
        tower = [p for p in lower if (p.layer, p.expert) == (place.layer, place.expert)]
        assert tower
        units = shown(model, Need.MLP_UNITS)[place]
        assert units["in"].shape == units["out"].shape[::-1]


@pytest.mark.hf
def test_a_gated_unit_is_its_up_row_and_its_gate_stands_beside_it():
    model = build("llama")
    units = shown(model, Need.MLP_UNITS)[Place(0)]
    mlp = model.model.layers[0].mlp
    assert torch.equal(units["in"], mlp.up_proj.weight)
    assert torch.equal(units["gate"], mlp.gate_proj.weight)
    assert "in_bias" not in units
    biased = shown(build("gpt2"), Need.MLP_UNITS)[Place(1)]
    assert biased["in_bias"].shape == biased["in"].shape[:1]


@pytest.mark.hf
def test_embedding_is_shown_once_for_the_whole_model():
    model = build("gpt_neox")
    (place,) = (found := shown(model, Need.EMBEDDING))
    assert place == Place()
    assert torch.equal(found[place]["weight"], model.gpt_neox.embed_in.weight)
    with pytest.raises(JomaError, match="no token embedding"):
        shown(build("vit"), Need.EMBEDDING)


@pytest.mark.hf
def test_gradients_are_shown_after_backward_only():
    model = build("gpt2")
    with pytest.warns(ObservationWarning, match="no mlp_in_gradient to show"):
        assert shown(model, Need.MLP_IN_GRADIENT) == {}
    model(**batch("gpt2"))[0].cos().mean().backward()
    found = shown(model, Need.MLP_IN_GRADIENT)
    conv = model.transformer.h[1].mlp.c_fc.weight
    assert torch.equal(found[Place(1)]["weight"], conv.grad.T)


@pytest.mark.hf
def test_warm_starts_belong_to_a_place_and_outlive_a_reset():
    seen = observe(build("llama"), [Lower()])
    for visit in range(3):
        assert {r.value for r in seen.readings()} == {float(visit)}
        seen.reset()


def split(name, **more):
    """Heads of layer 0, and the attention module they came from."""
    model = build(name, **more)
    observation = observe(model, [])
    attention = observation.anatomy.attentions[0]
    heads = shown(model, Need.HEADS)[Place(attention.layer, attention.site)]
    return heads, model.get_submodule(attention.module)


def projected(heads, role, x):
    """What one head makes of the inputs: (batch, head, token, width)."""
    out = torch.einsum("hwe,bte->bhtw", heads[role], x)
    bias = heads.get(f"{role}_bias")
    return out if bias is None else out + bias[:, None]


INPUTS = torch.randn(2, 5, EMBED, generator=torch.Generator().manual_seed(0))


@pytest.mark.hf
@pytest.mark.parametrize("name", ["bloom", "falcon", "falcon_alibi", "falcon_new"])
def test_fused_heads_are_those_that_the_model_cuts_out(name):
    heads, module = split(name)
    cut = module._reshape if name == "bloom" else module._split_heads
    parts = cut(module.query_key_value(INPUTS))
    for role, part in zip(("query", "key", "value"), parts, strict=True):
        part = part if name == "bloom" else part.transpose(1, 2)
        ours = projected(heads, role, INPUTS)
        ours = ours.repeat_interleave(part.shape[1] // ours.shape[1], 1)
        torch.testing.assert_close(ours, part, rtol=TOLERANCE, atol=TOLERANCE)


NORMED = {"qwen3", "olmo2", "olmo3", "gemma3", "apertus", "qwen3_moe", "olmoe"}
INTERFACE = [
    name
    for name, (family, *_) in ZOO.items()
    if family not in ("bloom", "falcon", "gptj", "gpt_neo", "mpt", "codegen")
    and name not in NORMED  # queries are normalised after the projection
]


@pytest.mark.hf
@pytest.mark.parametrize("name", INTERFACE)
def test_heads_of_a_family_are_the_queries_and_keys_it_computes(name):
    model = build(name)
    observation = observe(model, [])
    attention = observation.anatomy.attentions[-1]
    if "cross" in (attention.site or ""):
        attention = observation.anatomy.attentions[-2]
    module = model.get_submodule(attention.module)
    inputs = []
    handle = module.register_forward_pre_hook(
        lambda _m, args, kwargs: inputs.append([*args, *kwargs.values()][0]), with_kwargs=True
    )
    recorder = Recorder()
    with observation._attachment._attention("interface", recorder), torch.no_grad():
        model(**batch(name, padding=0))
    handle.remove()
    place = Place(attention.layer, attention.site)
    heads = shown(model, Need.HEADS)[place]
    assert len(heads["query"]) == HEADS
    call = recorder.calls[place]
    for role, found in (("query", call.query), ("key", call.key)):
        found = found[:, :, :1]  # at position 0 rotary embeddings do nothing
        ours = projected(heads, role, inputs[0][:, :1])
        if (name, role) == ("opt", "query"):  # OPT scales its queries before the call
            ours = ours * ours.shape[-1] ** -0.5
        torch.testing.assert_close(ours, found, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.hf
def test_heads_whose_order_is_not_known_are_refused():
    with pytest.raises(JomaError, match=r"order of heads in transformer\.h\.0\.attn is not known"):
        shown(build("codegen"), Need.HEADS)


@pytest.mark.hf
def test_values_and_outputs_of_the_heads_give_the_attention_s_output():
    heads, module = split("gpt2", attn_implementation="eager")
    with torch.no_grad():
        expected, weights = module(INPUTS)
    values = weights @ projected(heads, "value", INPUTS)
    ours = torch.einsum("bhtw,hew->bte", values, heads["output"]) + module.c_proj.bias
    torch.testing.assert_close(ours, expected, rtol=TOLERANCE, atol=TOLERANCE)


# Adapters


@pytest.fixture
def adapted():
    peft = pytest.importorskip("peft")

    def wrap(name, targets, **more):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, **more)
            model = peft.get_peft_model(build(name), config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                generator = torch.Generator().manual_seed(2)
                parameter.data = torch.randn(parameter.shape, generator=generator)
        return model

    return wrap


@pytest.mark.hf
@pytest.mark.parametrize(
    ("name", "targets"), [("llama", ["up_proj", "q_proj"]), ("gpt2", ["c_fc", "c_attn"])]
)
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_adapted_weights_are_the_effective_ones(name, targets, adapted):
    model = adapted(name, targets)
    found = shown(model, Need.MLP_IN), shown(model, Need.HEADS)
    merged = model.merge_and_unload()
    for ours, expected in zip(
        found, (shown(merged, Need.MLP_IN), shown(merged, Need.HEADS)), strict=True
    ):
        assert ours.keys() == expected.keys()
        for place, tensors in expected.items():
            for role, tensor in tensors.items():
                torch.testing.assert_close(ours[place][role], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.hf
def test_disabled_and_merged_adapters_are_not_counted_twice(adapted):
    model = adapted("llama", ["up_proj"])
    place = Place(0, "mlp.up")
    base = model.base_model.model.model.layers[0].mlp.up_proj.base_layer.weight.clone()
    effective = shown(model, Need.MLP_IN)[place]["weight"]
    assert not torch.allclose(base, effective)
    with model.disable_adapter():
        assert torch.equal(shown(model, Need.MLP_IN)[place]["weight"], base)
    model.merge_adapter()
    merged = shown(model, Need.MLP_IN)[place]["weight"]
    torch.testing.assert_close(merged, effective, rtol=1e-5, atol=1e-5)


@pytest.mark.hf
def test_an_adapted_model_is_observed_like_any_other(adapted):
    model, inputs = adapted("llama", ["up_proj", "q_proj"]), batch("llama")
    expected = model(**inputs)[0]
    with observe(model, [DenseEntropy()]) as seen:
        assert torch.equal(model(**inputs)[0], expected)
    assert seen.family == "llama"
    assert {r.layer for r in seen.streamed()} == {0, 1}


@pytest.mark.hf
def test_an_adapter_that_is_no_sum_is_refused(adapted):
    model = adapted("llama", ["up_proj"], use_dora=True)
    with pytest.raises(JomaError, match="not W \\+ BA"):
        shown(model, Need.MLP_IN)


# Quantised weights


class Int8Linear(nn.Module):
    """A matrix of codes with a scale, as many quantisers keep it."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        codes = (linear.weight.detach() * 10).round().clamp(-127, 127).to(torch.int8)
        self.weight = nn.Parameter(codes, requires_grad=False)

    def forward(self, x):
        return x @ (self.weight.to(x.dtype) / 10).T


class PackedLinear(Int8Linear):
    """Keeps its codes under another name, two to a byte."""

    def __init__(self, linear):
        super().__init__(linear)
        self.qweight = nn.Buffer(self.weight.detach().clone())
        del self.weight

    def forward(self, x):
        return x @ (self.qweight.to(x.dtype) / 10).T


@pytest.mark.hf
@pytest.mark.parametrize("kind", [Int8Linear, PackedLinear])
def test_quantised_weights_are_refused_but_their_attention_is_observed(kind):
    model, inputs = build("llama"), batch("llama")
    for layer in model.model.layers:
        layer.mlp.up_proj = kind(layer.mlp.up_proj)
        layer.mlp.gate_proj = kind(layer.mlp.gate_proj)
    with pytest.raises(QuantisedWeightsError, match="quantised weights are codes"):
        shown(model, Need.MLP_IN)
    with observe(model, [DenseEntropy()]) as seen:
        model(**inputs)
    assert len(list(seen.streamed())) == 2 * HEADS


def test_names_are_cleaned_of_wrappers():
    wrapped = "module._orig_mod.layers.3._checkpoint_wrapped_module.mlp.up.base_layer.weight"
    assert live.clean(wrapped) == "module.layers.3.mlp.up.weight"
    assert live.clean("_orig_mod") == ""
    assert live.clean("embed.modules_to_save.default.weight") == "embed.weight"
    assert live.clean("base_layer_norm.weight") == "base_layer_norm.weight"


def test_parametrised_weights_are_shown_as_the_forward_uses_them():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    linear = model.layers[0].linear1
    nn.utils.parametrizations.weight_norm(linear)
    linear.parametrizations.weight.original0.data.mul_(3)
    assert torch.equal(shown(model, Need.MLP_IN)[Place(0)]["weight"], linear.weight)


# Rotary positions


@pytest.mark.hf
@pytest.mark.parametrize("name", INTERFACE)
def test_positions_turn_the_coordinates_that_are_said_to_turn(name):
    model = build(name)
    observation = observe(model, [])
    attention = observation.anatomy.attentions[0]
    module, recorder, inputs = model.get_submodule(attention.module), Recorder(), []
    handle = module.register_forward_pre_hook(
        lambda _m, args, kwargs: inputs.append([*args, *kwargs.values()][0]), with_kwargs=True
    )
    with observation._attachment._attention("interface", recorder), torch.no_grad():
        model(**batch(name, padding=0))
    handle.remove()
    place = Place(attention.layer, attention.site)
    heads = shown(model, Need.HEADS)[place]
    before, after = projected(heads, "query", inputs[0]), recorder.calls[place].query
    if name == "opt":  # OPT scales its queries before the call
        before = before * before.shape[-1] ** -0.5
    pairs = heads["rotary"]
    still = [i for i in range(before.shape[-1]) if i not in pairs.flatten().tolist()]
    torch.testing.assert_close(before[..., still], after[..., still], rtol=1e-4, atol=1e-4)
    lengths = [t[..., pairs].square().sum(-1) for t in (before, after)]
    torch.testing.assert_close(*lengths, rtol=1e-4, atol=1e-4)
    if len(pairs):
        assert (before - after).abs()[..., pairs.flatten()].max() > 0.1
    if len(pairs) > 1:
        wrong = pairs.flatten().roll(1).view(-1, 2)
        assert not torch.allclose(*(t[..., wrong].square().sum(-1) for t in (before, after)))


@pytest.mark.hf
@pytest.mark.parametrize("name", sorted(NORMED))
def test_where_queries_are_normalised_nothing_is_said_to_turn(name):
    model = build(name)
    assert all("rotary" not in heads for heads in shown(model, Need.HEADS).values())


@pytest.mark.hf
def test_layers_without_positions_turn_nothing():
    model = build("smollm3", no_rope_layers=[1, 0])
    pairs = [len(heads["rotary"]) for heads in shown(model, Need.HEADS).values()]
    assert pairs == [4, 0]

"""Observation changes nothing: not the outputs, the gradients, the random state, or the model."""

import copy
from typing import ClassVar

import pytest
import torch
from torch import nn

from joma._core.errors import JomaError
from joma.probes.attach import ObservationWarning
from joma.probes.base import AbstractStreamProbe, Need
from joma.probes.observe import observe
from unit.probes.zoo import DenseEntropy, batch, build

pytestmark = pytest.mark.hf

# One of each way in: the interface with three kinds of mask, and the functions a model calls.
NAMES = ["llama", "gpt2", "bert", "t5", "gpt_oss", "mixtral"]
OUTSIDE = ["bloom", "falcon"]


class Everything(DenseEntropy):
    """Asks for attention; stands with `HiddenCounter` for all that can be attached."""


class HiddenCounter(AbstractStreamProbe):
    need: ClassVar = Need.HIDDEN

    def observe(self, seen):
        return {"rows": torch.tensor(float(seen.inputs.flatten(0, -2).shape[0]))}

    def readings(self, place, sums):
        yield place.reading("rows", float(sums["rows"]))


def state_of(model: nn.Module) -> dict:
    """Everything about a model that observation might touch."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return {
        "names": [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")],
        "registered": ALL_ATTENTION_FUNCTIONS.valid_keys(),
        "masks": ALL_MASK_ATTENTION_FUNCTIONS.valid_keys(),
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "hooks": [
            sum(len(v) for k, v in vars(m).items() if "hooks" in k and hasattr(v, "__len__"))
            for m in model.modules()
        ],
        "buffers": [name for name, _ in model.named_buffers()],
        "training": [m.training for m in model.modules()],
        "grads": [p.grad for p in model.parameters()],
    }


def trained_once(model, inputs):
    """Output and gradients of one backward pass."""
    torch.manual_seed(3)  # dropout
    output = model(**inputs)[0]
    output.float().cos().mean().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return [output.detach(), *gradients]


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.fixture(autouse=True)
def random_state():
    """Dropout needs the global state; tests give it back."""
    with torch.random.fork_rng():
        yield


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_bit_identical(name, training):
    model, inputs = build(name).train(training), batch(name)
    before, bare = state_of(model), trained_once(model, inputs)
    with observe(model, [Everything(), HiddenCounter()]) as seen:
        during = trained_once(model, inputs)
    assert list(seen.streamed())
    assert same(bare, during)
    assert same(bare, trained_once(model, inputs))
    assert state_of(model) == before


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.filterwarnings("ignore::joma.probes.attach.ObservationWarning")
def test_models_outside_the_interface_are_left_as_they_were(name):
    model, inputs = build(name).train(), batch(name)
    before, bare = state_of(model), trained_once(model, inputs)
    with observe(model, [Everything(), HiddenCounter()]):
        during = trained_once(model, inputs)
    assert same(bare, during)
    assert same(bare, trained_once(model, inputs))
    assert state_of(model) == before


def test_random_state_is_untouched():
    model, inputs = build("llama"), batch("llama")
    before = torch.get_rng_state()
    with observe(model, [Everything()]):
        model(**inputs)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["llama", "bloom"])
@pytest.mark.filterwarnings("ignore::joma.probes.attach.ObservationWarning")
def test_a_forward_that_raises_leaves_nothing_behind(name):
    model, inputs = build(name), batch(name)
    before = state_of(model)
    seen = observe(model, [Everything()])
    seen.plan()
    last = list(seen._attachment.attention_modules())[-1]
    handle = next(last.children()).register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), seen:
        model(**inputs)
    handle.remove()
    assert state_of(model) == before
    model(**inputs)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom"])
@pytest.mark.filterwarnings("ignore::joma.probes.attach.ObservationWarning")
def test_gradient_checkpointing_shows_each_layer_once(name, reentrant):
    model, inputs = build(name).train(), batch(name)
    model.config.use_cache = False
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    bare = trained_once(model, inputs)
    counter = CallCounter()
    with observe(model, [counter, HiddenCounter()]) as seen:
        during = trained_once(model, inputs)
    assert same(bare, during)
    found = list(seen.streamed())
    assert [r.value for r in found if r.metric == "calls"] == [1.0, 1.0]
    rows = inputs["input_ids"].numel()
    assert {r.value for r in found if r.metric == "rows"} == {float(rows)}


class CallCounter(AbstractStreamProbe):
    need: ClassVar = Need.ATTENTION

    def observe(self, seen):
        return {"calls": torch.ones((), dtype=torch.float64)}

    def readings(self, place, sums):
        yield place.reading("calls", float(sums["calls"]))


@pytest.mark.parametrize("name", ["llama", "bloom"])
@pytest.mark.filterwarnings("ignore::joma.probes.attach.ObservationWarning")
def test_backward_after_the_context_does_not_raise_under_checkpointing(name):
    model, inputs = build(name).train(), batch(name)
    model.config.use_cache = False
    model.gradient_checkpointing_enable({"use_reentrant": False})
    bare = trained_once(model, inputs)
    torch.manual_seed(3)
    with observe(model, [CallCounter()]):
        output = model(**inputs)[0]
    output.float().cos().mean().backward()
    assert same(bare[1:], [p.grad for p in model.parameters() if p.grad is not None])


def test_observation_cannot_start_inside_backward():
    model = build("llama")
    leaf = torch.ones(1, requires_grad=True)
    watched = leaf * 2
    watched.register_hook(lambda _: observe(model, [CallCounter()]).__enter__())
    with pytest.raises(JomaError, match="between optimiser steps"):
        watched.sum().backward()


@pytest.mark.parametrize("shared", [True, False])
def test_two_models_at_once_do_not_mix(shared):
    one = build("llama")
    other = copy.deepcopy(one)
    if shared:
        for module in other.modules():
            if hasattr(module, "config"):
                module.config = one.config
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    inputs = batch("llama")
    alone = []
    for model in (one, other):
        with observe(model, [DenseEntropy()]) as seen:
            model(**inputs)
        alone.append(list(seen.streamed()))
    assert alone[0] != alone[1]
    with observe(one, [DenseEntropy()]) as first:
        with observe(other, [DenseEntropy()]) as second:
            one(**inputs)
            other(**inputs)
        other(**inputs)  # no longer observed, but may share a configuration that is
    assert [list(first.streamed()), list(second.streamed())] == alone
    assert one.config._attn_implementation == "sdpa"


def test_one_model_is_not_observed_twice_at_once():
    model = build("llama")
    with (
        observe(model, [CallCounter()]),
        pytest.raises(JomaError, match="Give all probes to one"),
        observe(model, [CallCounter()]),
    ):
        pass


def test_a_probe_that_raises_does_not_stop_the_model():
    class Broken(CallCounter):
        def observe(self, seen):
            raise ValueError("cannot look at this")

    model, inputs = build("llama"), batch("llama")
    expected = model(**inputs)[0]
    warned = pytest.warns(ObservationWarning, match="of layer 0, 1 were not seen: cannot look")
    with warned, observe(model, [Broken(), CallCounter()]) as seen:
        assert torch.equal(model(**inputs)[0], expected)
    with pytest.warns(ObservationWarning, match="No call was seen"):
        list(observe(model, [Broken()]).streamed())
    assert len(list(seen.streamed())) == 2


def test_probes_are_shown_tensors_without_autocast_or_gradients():
    class Careful(CallCounter):
        def observe(self, seen):
            assert not torch.is_grad_enabled()
            assert not torch.is_autocast_enabled("cpu")
            assert not seen.query.requires_grad
            return super().observe(seen)

    model, inputs = build("llama"), batch("llama")
    with observe(model, [Careful()]) as seen, torch.autocast("cpu", torch.bfloat16):
        model(**inputs)
    assert len(list(seen.streamed())) == 2


def test_the_context_can_be_entered_again_and_reset():
    model, inputs = build("gpt2"), batch("gpt2")
    seen = observe(model, [CallCounter()])
    for _ in range(3):
        with seen:
            model(**inputs)
        model(**inputs)
    assert [r.value for r in seen.streamed()] == [3.0, 3.0]
    seen.reset()
    with seen:
        model(**inputs)
    assert [r.value for r in seen.streamed()] == [1.0, 1.0]


def test_generation_with_a_cache_is_observed_at_every_step():
    model = build("llama")
    inputs = {"input_ids": torch.arange(3, 13).view(2, 5)}
    kwargs = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    expected = model.generate(**inputs, **kwargs)
    with observe(model, [CallCounter()]) as seen:
        assert torch.equal(model.generate(**inputs, **kwargs), expected)
    assert [r.value for r in seen.streamed()] == [4.0, 4.0]


def test_attention_weights_that_a_user_asks_for_are_still_returned():
    model, inputs = build("llama", "eager"), batch("llama")
    expected = model(**inputs, output_attentions=True).attentions
    with observe(model, [CallCounter()]):
        found = model(**inputs, output_attentions=True).attentions
    assert same(expected, found)


def test_inference_mode_is_observed():
    model, inputs = build("llama"), batch("llama")
    seen = observe(model, [CallCounter()])
    with seen, torch.inference_mode():
        model(**inputs)
    with seen:
        model(**inputs)
    assert [r.value for r in seen.streamed()] == [2.0, 2.0]


def test_an_implementation_that_is_set_meanwhile_stays():
    model, inputs = build("llama"), batch("llama")
    with observe(model, [CallCounter()]):
        model(**inputs)
        model.set_attn_implementation("eager")
    assert model.config._attn_implementation == "eager"
    model(**inputs)


def test_silence_is_reported():
    model = build("gpt2")
    with observe(model, [CallCounter()]) as seen:
        pass
    with pytest.warns(ObservationWarning, match="Was the model run inside the context"):
        assert list(seen.readings()) == []

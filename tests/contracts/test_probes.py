"""Every probe in the registry keeps the contract. A new file is tested on arrival."""

import math

import pytest
import torch

from joma.metrics import registry
from joma.probes.base import (
    WEIGHT_NEEDS,
    AbstractStreamProbe,
    AbstractWeightProbe,
    AttentionCall,
    HiddenCall,
    Need,
    Place,
)
from joma.probes.sums import combine

# Sums are float64, what is summed float32: halves differ from the whole by rounding only.
ROUNDING = 1e-6

PLACES = [Place(layer=0, site="self"), Place(layer=3, site="mlp.up", expert=1)]
HEADS, WIDTH, EMBED, HIDDEN = 4, 6, 10, 16


def attention(generator, *, batch=2, length=16):
    query = torch.randn(batch, HEADS, length, WIDTH, generator=generator)
    key = torch.randn(batch, HEADS // 2, length, WIDTH, generator=generator)
    return AttentionCall(query=query, key=key, scale=WIDTH**-0.5, causal=True)


def hidden(generator, *, batch=2, length=16):
    inputs = torch.randn(batch, length, EMBED, generator=generator)
    return HiddenCall(
        inputs=inputs, preactivation=inputs @ torch.randn(EMBED, HIDDEN, generator=generator)
    )


CALLS = {Need.ATTENTION: attention, Need.HIDDEN: hidden}

SHAPES = {
    Need.MLP_IN: {"weight": (HIDDEN, EMBED)},
    Need.MLP_IN_GRADIENT: {"weight": (HIDDEN, EMBED)},
    Need.MLP_OUT: {"weight": (EMBED, HIDDEN)},
    Need.MLP_UNITS: {"in": (HIDDEN, EMBED), "in_bias": (HIDDEN,), "out": (EMBED, HIDDEN)},
    Need.HEADS: {
        "query": (HEADS, WIDTH, EMBED),
        "key": (HEADS // 2, WIDTH, EMBED),
        "value": (HEADS // 2, WIDTH, EMBED),
        "output": (HEADS, EMBED, WIDTH),
        "query_bias": (HEADS, WIDTH),
    },
    Need.EMBEDDING: {"weight": (40, EMBED)},
}


def weights(need, generator, **options):
    shapes = SHAPES[need].items()
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes}
    return {name: tensor.to(**options).detach() for name, tensor in drawn.items()}


def halves(call):
    """The same call, batch element by batch element."""
    fields = {name: getattr(call, name) for name in call.__dataclass_fields__}
    for row in range(2):
        yield type(call)(
            **{
                name: value[[row]] if isinstance(value, torch.Tensor) else value
                for name, value in fields.items()
            }
        )


def take(probe, generator):
    """Readings of two places, each seen twice, whatever the probe looks at."""
    readings = []
    for place in PLACES:
        if isinstance(probe, AbstractStreamProbe):
            seen = [probe.observe(CALLS[probe.need](generator)) for _ in range(2)]
            readings.append((place, list(probe.readings(place, combine(*seen)))))
        else:
            warm = None
            for _ in range(2):
                found, warm = probe.measure(place, weights(probe.need, generator), warm)
                readings.append((place, found))
    return readings


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=registry.names())
def probe(request):
    probe = registry.load(request.param)
    if probe is None:
        pytest.skip(
            f"{request.param} needs more than a model has: it is functions, without a probe"
        )
    return probe


@pytest.fixture
def stream_probe(probe):
    if not isinstance(probe, AbstractStreamProbe):
        pytest.skip("measures weights, which come whole")
    return probe


@pytest.fixture
def weight_probe(probe):
    if not isinstance(probe, AbstractWeightProbe):
        pytest.skip("watches a stream")
    return probe


def test_a_probe_is_of_one_kind_and_its_need_fits(probe):
    if isinstance(probe, AbstractWeightProbe):
        assert probe.need in WEIGHT_NEEDS
    else:
        assert isinstance(probe, AbstractStreamProbe)
        assert probe.need not in WEIGHT_NEEDS


def test_readings_are_finite_and_placed(probe, generator):
    for place, readings in take(probe, generator):
        assert readings
        assert all(math.isfinite(r.value) for r in readings)
        assert all(Place(r.layer, r.site, r.expert) == place for r in readings)


def test_no_two_readings_of_a_place_have_one_name(probe, generator):
    for _, readings in take(probe, generator):
        assert len({(r.metric, r.head) for r in readings}) == len(readings)


def test_same_tensors_give_the_same_readings(probe):
    twice = [take(probe, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert twice[0] == twice[1]


def test_global_random_state_is_left_alone(probe, generator):
    before = torch.get_rng_state()
    take(probe, generator)
    assert torch.equal(before, torch.get_rng_state())


def test_adding_sums_equals_observing_the_whole(stream_probe, generator):
    whole = CALLS[stream_probe.need](generator)
    added = combine(*(stream_probe.observe(half) for half in halves(whole)))
    pairs = zip(
        stream_probe.readings(PLACES[0], added),
        stream_probe.readings(PLACES[0], stream_probe.observe(whole)),
        strict=True,
    )
    for one, other in pairs:
        assert one.metric == other.metric
        assert one.value == pytest.approx(other.value, rel=ROUNDING, abs=ROUNDING)


def test_sums_are_float64_and_do_not_grow_with_the_data(stream_probe, generator):
    call = CALLS[stream_probe.need]
    small, large = (stream_probe.observe(call(generator, batch=n, length=8 * n)) for n in (2, 6))
    assert all(entry.dtype == torch.float64 for entry in small.values())
    assert {n: e.shape for n, e in small.items()} == {n: e.shape for n, e in large.items()}
    assert sum(entry.numel() for entry in large.values()) < 6 * 48 * HEADS * WIDTH


def test_calls_are_left_alone(stream_probe, generator):
    seen = CALLS[stream_probe.need](generator)
    same = CALLS[stream_probe.need](torch.Generator().manual_seed(0))
    stream_probe.observe(seen)
    for name in seen.__dataclass_fields__:
        one, other = getattr(seen, name), getattr(same, name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_weights_are_left_alone(weight_probe, generator):
    seen = weights(weight_probe.need, generator)
    kept = {name: tensor.clone() for name, tensor in seen.items()}
    weight_probe.measure(PLACES[0], seen)
    assert all(torch.equal(seen[name], kept[name]) for name in kept)


def test_parameters_that_are_trained_are_measured_without_a_graph(weight_probe, generator):
    plain = weights(weight_probe.need, generator)
    trained = {name: tensor.clone().requires_grad_() for name, tensor in plain.items()}
    assert weight_probe.measure(PLACES[0], trained)[0] == weight_probe.measure(PLACES[0], plain)[0]


def test_half_precision_is_measured_as_what_it_stores(weight_probe, generator):
    half = weights(weight_probe.need, generator, dtype=torch.bfloat16)
    full = {name: tensor.float() for name, tensor in half.items()}
    pairs = zip(*(weight_probe.measure(PLACES[0], t)[0] for t in (half, full)), strict=True)
    for one, other in pairs:
        assert one.value == pytest.approx(other.value, rel=ROUNDING)


def test_every_need_has_a_toy():
    assert set(CALLS) | set(SHAPES) == set(Need)


def test_unknown_probe_suggests_a_close_name():
    with pytest.raises(LookupError, match="Did you mean 'coherence'"):
        registry.load("coherences")

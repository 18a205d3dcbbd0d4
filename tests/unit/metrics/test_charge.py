"""Charges of heads and units: the theory's numbers, and what training does to them."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from joma.metrics.charge import HeadChargeProbe, conserved_part, qk_charge, vo_charge
from joma.metrics.unit_charge import UnitChargeProbe, unit_charge
from joma.probes.base import Place
from joma.theory import charges

# The same sums of squares in another order, in float64.
EXACT = 1e-12

HEADS, GROUP, WIDTH, EMBED, HIDDEN = 2, 3, 4, 7, 5
NOTHING_TURNS = torch.zeros(0, 2, dtype=torch.int64)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def normal(generator, *shape, dtype=torch.float64):
    return torch.randn(shape, generator=generator, dtype=dtype)


def heads(generator, group=GROUP, dtype=torch.float64):
    shapes = {
        "query": (HEADS * group, WIDTH, EMBED),
        "key": (HEADS, WIDTH, EMBED),
        "value": (HEADS, WIDTH, EMBED),
        "output": (HEADS * group, EMBED, WIDTH),
        "query_bias": (HEADS * group, WIDTH),
        "key_bias": (HEADS, WIDTH),
        "value_bias": (HEADS, WIDTH),
    }
    drawn = {name: normal(generator, *shape, dtype=dtype) for name, shape in shapes.items()}
    return drawn | {"rotary": NOTHING_TURNS}


def by_metric(readings):
    names = dict.fromkeys(r.metric for r in readings)
    return {name: [r.value for r in readings if r.metric == name] for name in names}


# --- definitions -------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, GROUP])
@pytest.mark.parametrize("biases", [True, False])
def test_head_charges_agree_with_theory(generator, group, biases):
    t = heads(generator, group)
    b = [t[f"{name}_bias"] if biases else None for name in ("query", "key", "value")]
    qk = qk_charge(t["query"], t["key"], b[0], b[1])
    vo = vo_charge(t["value"], t["output"], b[2])
    n = [None if x is None else x.numpy() for x in b]
    exact_qk = charges.grouped_qk_charge(
        t["query"].reshape(HEADS, group, WIDTH, EMBED).numpy(),
        t["key"].numpy(),
        None if n[0] is None else n[0].reshape(HEADS, group, WIDTH),
        n[1],
    )
    outputs = t["output"].reshape(HEADS, group, EMBED, WIDTH).numpy()
    exact_vo = charges.grouped_vo_charge(t["value"].numpy(), outputs, n[2])
    np.testing.assert_allclose(qk.value.numpy(), exact_qk, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(vo.value.numpy(), exact_vo, rtol=EXACT, atol=EXACT)
    for charge, parts in ((qk, ("query", "key")), (vo, ("value", "output"))):
        names = [*parts, *(f"{part}_bias" for part in parts if biases and f"{part}_bias" in t)]
        whole = sum(t[name].square().sum() for name in names)
        torch.testing.assert_close(charge.weight.sum(), whole, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("rotated", [6, 4])
def test_the_rotary_part_agrees_with_theory(generator, pairing, rotated):
    charge = normal(generator, 3, 6, 6)
    order = torch.arange(rotated)
    pairs = order.reshape(2, -1).T if pairing == "half" else order.reshape(-1, 2)
    exact = charges.rotary_charge(charge.numpy(), rotated, pairing=pairing)
    expected = np.concatenate([exact.pairs, exact.rest.reshape(3, -1)], 1)
    np.testing.assert_allclose(conserved_part(charge, pairs).numpy(), expected, atol=EXACT)


def test_without_rotation_all_of_the_charge_is_conserved(generator):
    charge = normal(generator, 3, 6, 6)
    assert torch.equal(conserved_part(charge, NOTHING_TURNS), charge.flatten(1))


@pytest.mark.parametrize("degree", [1.0, 2.0])
def test_unit_charges_agree_with_theory(generator, degree):
    w_in, w_out, b = (normal(generator, *s) for s in ((HIDDEN, EMBED), (3, HIDDEN), (HIDDEN,)))
    for bias in (b, None):
        found = unit_charge(w_in, w_out, bias, degree=degree)
        n = None if bias is None else bias.numpy()
        exact = charges.relu_charge(w_in.numpy(), w_out.numpy(), n, degree=degree)
        np.testing.assert_allclose(found.value.numpy(), exact, rtol=EXACT, atol=EXACT)


def test_single_precision_weights_are_added_up_in_double(generator):
    """Plain float32 norms accumulate naively; a drift is a small difference of large sums."""
    w_in = normal(generator, 3, 200_000, dtype=torch.float32)
    found = unit_charge(w_in, torch.zeros(1, 3)).value
    torch.testing.assert_close(found, w_in.double().square().sum(1), rtol=EXACT, atol=0)
    query = w_in[None]
    gram = qk_charge(query, torch.zeros_like(query)).value[0]
    torch.testing.assert_close(gram, w_in.double() @ w_in.double().T, rtol=1e-10, atol=1e-7)


class LargestDouble(TorchFunctionMode):
    numel = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.numel = max(self.numel, result.numel())
        return result


def test_weights_are_never_copied_whole_into_double(generator):
    tensors = heads(generator, dtype=torch.float32)
    with LargestDouble() as watch:
        HeadChargeProbe().measure(Place(), tensors)
    assert 0 < watch.numel <= max(WIDTH * EMBED, HEADS * GROUP * WIDTH * WIDTH)


def test_rejects_heads_that_do_not_share_evenly(generator):
    with pytest.raises(ValueError, match="got 5 of width 4 and 2 of width 4"):
        qk_charge(normal(generator, 5, 4, 7), normal(generator, 2, 4, 7))


# --- probes ------------------------------------------------------------------------------------


def test_the_first_measurement_is_the_reference_for_all_others(generator):
    probe, runs = HeadChargeProbe(), [heads(generator) for _ in range(3)]
    warm, found = None, []
    for tensors in runs:
        readings, warm = probe.measure(Place(layer=1), tensors, warm)
        found.append(by_metric(readings))
    names = {"qk_charge", "vo_charge", "qk_trace"}
    assert set(found[0]) == names, "no drift without a reference"
    assert set(found[2]) == names | {f"{name}_drift" for name in names}
    first, last = (
        qk_charge(*(t[n] for n in ("query", "key", "query_bias", "key_bias")))
        for t in (runs[0], runs[2])
    )
    moved = last.value - first.value
    expected = moved.flatten(1).norm(dim=1) / last.weight
    np.testing.assert_allclose(found[2]["qk_charge_drift"], expected, rtol=EXACT)
    trace = moved.diagonal(dim1=1, dim2=2).sum(1).abs() / last.weight
    np.testing.assert_allclose(found[2]["qk_trace_drift"], trace, rtol=EXACT)
    assert len(found[2]["qk_charge"]) == HEADS, "one per key head"


def test_without_knowledge_of_rotation_only_the_trace_is_reported(generator):
    tensors = heads(generator)
    del tensors["rotary"]
    _, warm = HeadChargeProbe().measure(Place(), tensors)
    readings, _ = HeadChargeProbe().measure(Place(), tensors, warm)
    assert set(by_metric(readings)) == {
        "qk_trace",
        "vo_charge",
        "qk_trace_drift",
        "vo_charge_drift",
    }


def test_gated_units_have_degree_one_whatever_the_activation(generator):
    tensors = {"in": normal(generator, 5, 7), "out": normal(generator, 7, 5)}
    one, two = (UnitChargeProbe(degree=d).measure(Place(), tensors)[0][0] for d in (1.0, 2.0))
    gated = UnitChargeProbe(degree=2.0).measure(Place(), tensors | {"gate": tensors["in"]})[0][0]
    assert gated == one != two


def test_a_drift_of_one_part_in_a_million_is_seen_in_single_precision(generator):
    before = heads(generator, dtype=torch.float32)
    after = dict(before, query=before["query"] * (1 + 2**-20))
    _, warm = HeadChargeProbe().measure(Place(), before)
    drift = by_metric(HeadChargeProbe().measure(Place(), after, warm)[0])["qk_trace_drift"]
    charge = qk_charge(after["query"], after["key"], after["query_bias"], after["key_bias"])
    queries = before["query"].double().square().reshape(HEADS, -1).sum(1)
    expected = queries * ((1 + 2**-20) ** 2 - 1) / charge.weight
    np.testing.assert_allclose(drift, expected, rtol=0.05)  # the products round to float32


def test_balanced_weights_have_no_charge(generator):
    tensors = heads(generator, group=1)
    tensors |= {"key": tensors["query"], "key_bias": tensors["query_bias"]}
    assert max(by_metric(HeadChargeProbe().measure(Place(), tensors)[0])["qk_charge"]) == 0


def test_a_reference_of_another_model_is_refused(generator):
    w = {"in": normal(generator, 5, 7), "out": normal(generator, 7, 5)}
    _, warm = UnitChargeProbe().measure(Place(), w)
    other = {"in": normal(generator, 6, 7), "out": normal(generator, 7, 6)}
    with pytest.raises(ValueError, match=r"shape \(5,\), this one \(6,\)"):
        UnitChargeProbe().measure(Place(), other, warm)


@pytest.mark.parametrize(("value", "status"), [(0.0, "all weights are zero"), (math.nan, "finite")])
def test_undefined_is_nan_and_says_why(generator, value, status):
    tensors = {
        name: t if name == "rotary" else torch.full_like(t, value)
        for name, t in heads(generator).items()
    }
    units = {"in": torch.full((5, 7), value), "out": torch.full((7, 5), value)}
    for probe, given in ((HeadChargeProbe(), tensors), (UnitChargeProbe(), units)):
        _, warm = probe.measure(Place(), given)
        for reading in probe.measure(Place(), given, warm)[0]:
            assert math.isnan(reading.value) and status in reading.status


# --- training ----------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """Grouped, rotated, causal attention with biases and a ReLU MLP, both with residuals."""

    def __init__(self, rotary):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        shapes = {
            "query": (HEADS * GROUP * WIDTH, EMBED),
            "key": (HEADS * WIDTH, EMBED),
            "value": (HEADS * WIDTH, EMBED),
            "output": (EMBED, HEADS * GROUP * WIDTH),
            "query_bias": (HEADS * GROUP * WIDTH,),
            "key_bias": (HEADS * WIDTH,),
            "value_bias": (HEADS * WIDTH,),
            "in": (HIDDEN, EMBED),
            "in_bias": (HIDDEN,),
            "out": (EMBED, HIDDEN),
        }
        self.p = torch.nn.ParameterDict(
            {n: torch.nn.Parameter(0.6 * normal(generator, *s)) for n, s in shapes.items()}
        )
        self.x, self.rotary = normal(generator, 4, 5, EMBED), rotary

    def forward(self):
        p, x = self.p, self.x

        def split(name):
            flat = x @ p[name].T + p[f"{name}_bias"]
            return flat.reshape(4, 5, -1, WIDTH).transpose(1, 2)

        q, k, v = split("query"), split("key"), split("value")
        if self.rotary:
            q, k = rotated(q), rotated(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + mixed.transpose(1, 2).reshape(4, 5, -1) @ p["output"].T
        hidden = functional.relu(x @ p["in"].T + p["in_bias"])
        return (x + hidden @ p["out"].T)[:, -1].softmax(-1)[:, 0].log().mean().neg()

    def heads(self):
        p = self.p
        weights = {n: p[n].reshape(-1, WIDTH, EMBED) for n in ("query", "key", "value")}
        biases = {n: p[n].reshape(-1, WIDTH) for n in ("query_bias", "key_bias", "value_bias")}
        output = p["output"].reshape(EMBED, -1, WIDTH).transpose(0, 1)
        pairs = torch.tensor([[0, 2], [1, 3]]) if self.rotary else NOTHING_TURNS
        return {**weights, **biases, "output": output, "rotary": pairs}


def rotated(x):
    half = WIDTH // 2
    angle = torch.arange(x.shape[-2])[:, None] * 3.0 ** -torch.arange(half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def drifts(steps, rotary=True, optimiser=torch.optim.SGD):
    """Largest relative drift of each charge over a time of 0.5."""
    block = Block(rotary)
    optimiser = optimiser(block.parameters(), lr=0.5 / steps)
    probes, warm = (HeadChargeProbe(), UnitChargeProbe()), [None, None]
    for step in range(steps + 1):
        if step in (0, steps):
            shown = (block.heads(), dict(block.p))
            seen = [
                probe.measure(Place(), *args)
                for probe, *args in zip(probes, shown, warm, strict=True)
            ]
            warm = [part[1] for part in seen]
        optimiser.zero_grad()
        block().backward()
        optimiser.step()
    found = by_metric([reading for part in seen for reading in part[0]])
    return {name: max(values) for name, values in found.items() if name.endswith("drift")}


@pytest.mark.parametrize("rotary", [True, False])
def test_sgd_drifts_in_proportion_to_its_step(rotary):
    coarse, fine = (drifts(steps, rotary) for steps in (100, 200))
    assert set(coarse) == {
        "qk_charge_drift",
        "vo_charge_drift",
        "qk_trace_drift",
        "unit_charge_drift",
    }
    for name in coarse:
        assert 0 < fine[name] < 0.01
        assert 1.85 < coarse[name] / fine[name] < 2.15, name


def test_a_wrong_claim_about_rotation_looks_like_drift_and_the_trace_does_not_mind(monkeypatch):
    plain = Block.heads
    monkeypatch.setattr(Block, "heads", lambda b: plain(b) | {"rotary": NOTHING_TURNS})
    coarse, fine = (drifts(steps, rotary=True) for steps in (100, 200))
    assert coarse["qk_charge_drift"] / fine["qk_charge_drift"] < 1.2
    assert 1.85 < coarse["qk_trace_drift"] / fine["qk_trace_drift"] < 2.15


def test_adam_conserves_nothing():
    """Hundreds of times the drift of SGD over the same time, and smaller steps hardly help."""
    coarse, fine = (drifts(steps, optimiser=torch.optim.Adam) for steps in (100, 200))
    sgd = drifts(200)
    for name in ("qk_charge_drift", "vo_charge_drift", "unit_charge_drift"):
        assert fine[name] > 50 * sgd[name]
        assert coarse[name] / fine[name] < 1.5

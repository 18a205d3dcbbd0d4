"""Attention entropy: exact on every path, without the attention matrix."""

import gc
import math
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from joma.bench._attention import coverage
from joma.metrics import _attention, _fused, entropy, logits
from joma.metrics._attention import statistics
from joma.metrics.entropy import PROBE, AttentionEntropyProbe, attention_entropy, plan
from joma.probes.base import AttentionCall
from joma.records.schema import OK, Bound
from unit.metrics.dense import CASES, FUSED, TILES, dense, left_padding, readings, toy

# The same sums in another order, in float64.
EXACT = 1e-12
# What float32 leaves of entropies up to 8 nats; the bar of the project.
SINGLE = 1e-5


pytestmark = pytest.mark.usefixtures("one_thread")


def means(probe, *calls, metric="attention_entropy"):
    return [r for (name, _), r in readings(probe, *calls).items() if name == metric]


def single(call):
    options = {name: getattr(call, name) for name in call.__dataclass_fields__}
    return AttentionCall(**options | {"query": call.query.float(), "key": call.key.float()})


@pytest.mark.parametrize("method", ["auto", "tiles"])
@pytest.mark.parametrize("case", CASES)
def test_every_path_equals_the_dense_entropy(case, method):
    call = toy(**CASES[case])
    found, expected = statistics(call, method), dense(call)
    torch.testing.assert_close(found.entropy, expected.entropy, rtol=0, atol=EXACT, equal_nan=True)
    visible = expected.visible.sum(-1) + expected.seen * (call.sinks is not None)
    assert torch.equal(found.outcomes.expand_as(visible), visible)


@pytest.mark.parametrize("case", CASES)
def test_float32_stays_within_the_bar_of_eager_attention(case):
    call = toy(**CASES[case])
    found = statistics(single(call)).entropy
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), dense(call).entropy, rtol=0, atol=SINGLE, equal_nan=True
    )


@pytest.mark.parametrize("case", CASES)
def test_the_plan_names_the_right_kernel_and_a_reason(case):
    path, why = plan(toy(**CASES[case]))
    assert path == ("fused" if case in FUSED else "tiles")
    assert why


@pytest.mark.parametrize("case", TILES)
def test_the_fused_path_is_refused_where_it_would_be_wrong(case):
    with pytest.raises(ValueError, match=r"fused path is not right here: .*method='tiles'"):
        statistics(toy(**CASES[case]), "fused")


def test_without_the_kernel_everything_goes_by_tiles(monkeypatch):
    call = toy(causal=True)
    monkeypatch.setattr(_fused, "kernel_is_right", lambda: False)
    assert plan(call).path == "tiles"
    torch.testing.assert_close(statistics(call).entropy, dense(call).entropy, rtol=0, atol=EXACT)


def test_a_kernel_that_errs_or_is_missing_is_found_out(monkeypatch):
    assert _fused.kernel_is_right()
    right = _fused._kernel
    wrong = [
        lambda q, k, scale, causal, shown: right(q, k, scale, False, shown),
        lambda q, k, scale, causal, shown: right(q, k, scale, causal, None),
        lambda q, k, scale, causal, shown: right(q, k.roll(1, 1), scale, causal, shown),
        lambda *_: torch.ops.aten._an_operator_that_is_not_there(),
    ]
    for kernel in wrong:
        monkeypatch.setattr(_fused, "_kernel", kernel)
        assert not _fused.kernel_is_right.__wrapped__()


def test_the_front_door_takes_tensors():
    call = toy(causal=True, window=5, kv_heads=2)
    found = attention_entropy(call.query, call.key, causal=True, window=5)
    torch.testing.assert_close(found, dense(call).entropy, rtol=0, atol=EXACT)
    scaled = attention_entropy(call.query, call.key, 2 * call.scale, causal=True, method="tiles")
    assert scaled.sum() < found.nansum() * 3  # another scale is another answer
    assert not torch.allclose(scaled, attention_entropy(call.query, call.key, causal=True))


def test_packed_documents_do_not_mix():
    call = toy(batch=1, causal=True)
    packed = attention_entropy(
        call.query, call.key, causal=True, cu_seqlens=torch.tensor([0, 13, 40])
    )
    for document in (slice(0, 13), slice(13, 40)):
        alone = attention_entropy(call.query[:, :, document], call.key[:, :, document], causal=True)
        torch.testing.assert_close(packed[:, :, document], alone, rtol=0, atol=EXACT)


def test_padding_is_left_out_of_the_mean():
    padded = toy(causal=True, mask=left_padding(batch=1, padded=7), batch=1)
    bare = AttentionCall(
        query=padded.query[:, :, 7:], key=padded.key[:, :, 7:], scale=padded.scale, causal=True
    )
    assert PROBE.observe(padded)["rows"].tolist() == [33.0] * 4
    for one, other in zip(means(PROBE, padded), means(PROBE, bare), strict=True):
        assert one.value == pytest.approx(other.value, abs=EXACT)


def test_a_query_that_sees_one_key_has_entropy_zero_and_no_fraction():
    found = readings(PROBE, toy(causal=True, window=1))
    assert found["attention_entropy", 0].value == 0
    fraction = found["attention_entropy_fraction", 0]
    assert math.isnan(fraction.value) and fraction.status == "no query sees two keys"


def test_nothing_visible_is_nan_with_a_reason():
    found = readings(PROBE, toy(**CASES["nothing visible"]))
    assert all(math.isnan(r.value) for r in found.values())
    assert {r.status for r in found.values()} == {"no query sees a key"}


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("method", ["auto", "tiles"])
def test_an_empty_call_does_not_crash(queries, keys, method):
    """The bare kernel ends the process with a floating point exception."""
    call = toy(queries=queries, keys=keys)
    assert statistics(call, method).entropy.isnan().all()
    for probe in (PROBE, AttentionEntropyProbe(method="sampled"), logits.PROBE):
        assert all(r.status != OK for r in readings(probe, call).values())


@pytest.mark.parametrize("side", ["query", "key"])
def test_a_width_that_is_not_dense_in_memory_is_read_right(side):
    """The bare kernel reads such tensors wrongly, without a word."""
    call = toy(causal=True)
    tensor = getattr(call, side)
    strided = tensor.transpose(2, 3).contiguous().transpose(2, 3)
    assert strided.stride(-1) != 1
    other = AttentionCall(**vars(call) | {side: strided})
    torch.testing.assert_close(statistics(other).entropy, dense(call).entropy, rtol=0, atol=EXACT)


def test_half_precision_is_upcast():
    call = toy(causal=True, queries=256, keys=256, sharpness=3.0, dtype=torch.bfloat16)
    query, key = call.query, call.key
    exact = dense(call).entropy
    found = statistics(call).entropy
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=SINGLE)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mean, lse = attend(query, key, key, 0.0, True, scale=call.scale)
    naive = lse - call.scale * (query * mean).sum(-1)
    assert (naive - exact).abs().max() > 0.003  # the trap


def test_autocast_around_the_probe_changes_nothing():
    call = toy(causal=True, bias=toy().query.new_ones(1, 1, 40, 40), dtype=torch.float32)
    expected = statistics(call, "tiles").entropy
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = statistics(toy(causal=True, bias=call.bias, dtype=torch.float32), "tiles").entropy
    assert torch.equal(expected, again)


def test_queries_that_are_trained_get_no_graph():
    """The kernel's own gradient leaves out its log-sum-exp: it would be wrong, without a word."""
    call = toy(causal=True)
    call.query.requires_grad_()
    assert not attention_entropy(call.query, call.key, causal=True).requires_grad
    assert not statistics(call, "tiles").entropy.requires_grad


@pytest.mark.parametrize("method", ["auto", "tiles"])
def test_nan_in_the_padding_does_no_harm(method):
    call = toy(causal=True, mask=left_padding())
    expected = dense(call).entropy
    call.key[0, :, :7] = math.nan
    call.query[0, :, :7] = math.nan
    found = statistics(call, method).entropy
    torch.testing.assert_close(found, expected, rtol=0, atol=EXACT, equal_nan=True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("method", ["auto", "tiles", "sampled"])
def test_non_finite_scores_give_nan_with_a_status_in_their_head_only(value, method):
    call = toy(causal=True, batch=1, queries=8, keys=8)
    call.query[0, 1] = value
    found = means(AttentionEntropyProbe(method=method), call)
    assert [math.isnan(r.value) for r in found] == [False, True, False, False]
    assert found[1].status == "non-finite attention scores"


@pytest.mark.parametrize("sharpness", [10.0, 100.0, 1000.0])
def test_large_scores_are_no_worse_than_eager(sharpness):
    """Where the scores are large the two terms of the identity cancel; tiles take over."""
    call = toy(causal=True, queries=300, keys=300, sharpness=sharpness, dtype=torch.float32)
    exact = dense(call).entropy
    scores = call.scale * call.query @ call.key.mT
    triangle = torch.ones(300, 300, dtype=torch.bool).triu(1)
    eager = torch.special.entr(scores.masked_fill(triangle, -math.inf).softmax(-1)).sum(-1)
    found = statistics(call, "fused").entropy
    assert (found >= 0).all()
    assert (found - exact).abs().max() <= 1.1 * (eager - exact).abs().max()


class Largest(TorchDispatchMode):
    """The largest tensor that is made while it watches."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // 4)
        return made


@pytest.mark.parametrize(
    "case", ["causal", "window", "packed", "left padding", "grouped keys", "softcap", "sinks"]
)
@pytest.mark.parametrize("probe", [PROBE, logits.PROBE, AttentionEntropyProbe(method="sampled")])
def test_the_attention_matrix_is_never_there(case, probe):
    length = 1024
    options = {k: v for k, v in CASES[case].items() if k not in ("mask", "cu_seqlens", "batch")}
    if case == "left padding":
        options["mask"] = left_padding(batch=1, keys=length, padded=100)
    if case == "packed":
        options["cu_seqlens"] = torch.tensor([0, 300, length])
    call = toy(batch=1, queries=length, keys=length, dtype=torch.float32, **options)
    with Largest() as largest:
        probe.observe(call)
    assert largest.numel <= length * length / 2  # of 4 heads


def test_probes_that_look_at_one_call_share_its_kernel(monkeypatch):
    runs = []
    fused = _fused.fused
    monkeypatch.setattr(_fused, "fused", lambda call: runs.append(call) or fused(call))
    call = toy(causal=True)
    for probe in (PROBE, logits.PROBE, logits.AttentionLogitProbe(exact=False)):
        probe.observe(call)
    assert len(runs) == 1
    PROBE.observe(toy(causal=True))  # equal numbers, another call
    assert len(runs) == 2


def test_nothing_is_kept_of_a_call_that_is_gone():
    call = toy(causal=True)
    query = weakref.ref(call.query)
    PROBE.observe(call)
    assert _attention._LAST
    del call
    gc.collect()
    assert query() is None
    assert not _attention._LAST


def test_the_fraction_is_a_ratio_of_sums():
    call = toy(causal=True)
    found = readings(PROBE, call)
    nats = dense(call).entropy[:, 0].sum()
    ceiling = 2 * torch.arange(1, 41).log().sum()
    assert found["attention_entropy_fraction", 0].value == pytest.approx(float(nats / ceiling))
    assert found["attention_entropy", 0].value == pytest.approx(float(nats / 80))
    assert found["attention_entropy", 0].bound == Bound.NONE


def test_the_spread_is_the_deviation_over_rows():
    call = toy(causal=True)
    expected = dense(call).entropy.transpose(0, 1).flatten(1).std(-1, correction=0)
    found = means(PROBE, call, metric="attention_entropy_spread")
    assert [r.value for r in found] == pytest.approx(expected.tolist(), abs=1e-9)


def test_uniform_attention_reaches_its_ceiling():
    call = toy(causal=True, sharpness=0.0, dtype=torch.float32)
    for reading in means(PROBE, call, metric="attention_entropy_fraction"):
        assert reading.value == pytest.approx(1.0, abs=SINGLE)
        assert reading.value <= 1.0


# Sampled rows


def test_sampled_intervals_hold_as_often_as_they_say():
    assert coverage(200) >= 0.93


@pytest.mark.parametrize("case", ["causal", "packed", "sinks, padding", "a mask for each head"])
def test_sampling_is_unbiased(case):
    call = toy(sharpness=3.0, **CASES[case])
    exact = [r.value for r in means(PROBE, call)]
    seeds = range(100)
    drawn = [means(AttentionEntropyProbe(method="sampled", seed=s), call) for s in seeds]
    assert all(r.bound == Bound.CI95 for r in drawn[0])
    values = torch.tensor([[r.value for r in one] for one in drawn], dtype=torch.float64)
    error = values.std(0) / math.sqrt(len(seeds))
    assert ((values.mean(0) - torch.tensor(exact)).abs() <= 4 * error).all()


def test_a_few_rows_are_all_looked_at():
    call = toy(causal=True, batch=1, queries=12, keys=12)
    for one, other in zip(
        means(AttentionEntropyProbe(method="sampled"), call), means(PROBE, call), strict=True
    ):
        assert one.lower == one.value == one.upper
        assert one.value == pytest.approx(other.value, abs=EXACT)


def test_more_calls_narrow_the_interval():
    probe = AttentionEntropyProbe(method="sampled")
    calls = [toy(causal=True, queries=200, keys=200, sharpness=3.0, seed=s) for s in range(16)]
    one, many = means(probe, calls[0])[0], means(probe, *calls)[0]
    assert many.upper - many.lower < (one.upper - one.lower) / 3


def test_rows_are_drawn_by_seed_and_call_and_global_state_is_left_alone():
    before = torch.get_rng_state()
    sampled = AttentionEntropyProbe(method="sampled")
    call, layer_above = (toy(causal=True, queries=500, keys=500, seed=s) for s in (0, 1))
    again = toy(causal=True, queries=500, keys=500, seed=0)
    assert means(sampled, call) == means(sampled, again)
    assert means(sampled, call) != means(AttentionEntropyProbe(method="sampled", seed=1), call)
    draw = [
        torch.rand(4, generator=entropy._sampled.generator_of(c, 0)) for c in (call, layer_above)
    ]
    assert not torch.equal(*draw)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("rows", [2, 15])
def test_rows_come_in_pairs(rows):
    with pytest.raises(ValueError, match=f"even and at least 4.*got {rows}"):
        AttentionEntropyProbe(method="sampled", rows=rows).observe(toy(causal=True))


# What is refused


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window": 4}, "needs causal=True and window >= 1"),
        ({"causal": True, "window": 0}, "window >= 1; got causal=True, window=0"),
        ({"softcap": 0.0}, "softcap must be positive; got 0.0"),
        ({"kv_heads": 3}, "multiple of key heads"),
        ({"cu_seqlens": torch.tensor([0, 40])}, "packs documents into one row.*batch 2"),
        (
            {"batch": 1, "keys": 50, "cu_seqlens": torch.tensor([0, 40])},
            "as many queries as keys.*40 queries, 50 keys",
        ),
        ({"batch": 1, "cu_seqlens": torch.tensor([0, 30])}, r"rise from 0 to .* \(40\)"),
        ({"batch": 1, "cu_seqlens": torch.tensor([0, 30, 20, 40])}, r"got \[0, 30, 20, 40\]"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        statistics(toy(**options))


@pytest.mark.parametrize("name", ["mask", "bias", "sinks", "dtype"])
def test_shapes_that_do_not_fit_are_refused_in_use_too(name, monkeypatch):
    """Outside of tests no shape is checked by annotation."""
    call = toy()
    bad = {
        "mask": {"mask": torch.ones(2, 1, 40, 41, dtype=torch.bool)},
        "bias": {"bias": torch.ones(2, 3, 40, 40)},
        "sinks": {"sinks": torch.ones(5)},
        "dtype": {"query": call.query.long()},
    }[name]
    for field, tensor in bad.items():
        object.__setattr__(call, field, tensor)
    with pytest.raises(ValueError, match="floating point" if name == "dtype" else f"{name} must"):
        statistics(call)

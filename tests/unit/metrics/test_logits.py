"""The largest attention logit and attention sinks."""

import dataclasses
import math

import pytest
import torch

from joma.metrics import _tiles, logits
from joma.metrics._attention import statistics
from joma.metrics.logits import (
    PROBE,
    AttentionLogitProbe,
    logit_bracket,
    max_attention_logit,
    sink_free_entropy,
    sink_mass,
)
from joma.records.schema import Bound
from unit.metrics.dense import CASES, dense, left_padding, random, readings, toy

# The same sums in another order, in float64.
EXACT = 1e-12
# The bar of the project for the largest logit in float32.
LOGIT = 1e-4


pytestmark = pytest.mark.usefixtures("one_thread")


def single(call):
    return dataclasses.replace(call, query=call.query.float(), key=call.key.float())


@pytest.mark.parametrize("method", ["auto", "tiles"])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("case", CASES)
def test_the_largest_logit_is_the_dense_maximum(case, sharpness, method):
    call = toy(sharpness=sharpness, **CASES[case])
    expected = dense(call).largest
    found = max_attention_logit(call, method)
    torch.testing.assert_close(found, expected, rtol=0, atol=EXACT)
    found = max_attention_logit(single(call), method).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=LOGIT)


@pytest.mark.parametrize("case", CASES)
def test_the_bracket_holds_the_largest_logit(case):
    call = toy(sharpness=3.0, **CASES[case])
    largest = dense(call).largest
    for one in (call, single(call)):
        lower, upper = logit_bracket(one)
        assert (lower <= largest).all() and (largest <= upper).all()
        rows = statistics(one)
        room = rows.outcomes.clamp(min=1).log() + 1e-3
        assert (upper - lower <= room.amax()).logical_or(largest.isinf()).all()


def test_few_rows_are_looked_at_when_attention_is_peaked(monkeypatch):
    looked = []
    scored = _tiles.scored

    def counting(call):
        looked.append(call.query.shape[1] * call.query.shape[2])
        return scored(call)

    call = toy(causal=True, batch=1, queries=512, keys=512, sharpness=4.0)
    statistics(call)
    monkeypatch.setattr(_tiles, "scored", counting)
    torch.testing.assert_close(max_attention_logit(call), dense(call).largest, rtol=0, atol=EXACT)
    assert sum(looked) <= 0.1 * 4 * 512


@pytest.mark.parametrize("row", [0, 17, 39])
def test_one_large_score_is_found_wherever_it_hides(row):
    """In a row whose log-sum-exp is not the largest, behind another head's maximum."""
    call = toy(causal=True, sharpness=0.01)
    call.query[1, 2, row] = 0
    call.query[1, 2, row, 0] = 3.0
    call.key[1, 2, row] = 0
    call.key[1, 2, row, 0] = 2.0
    assert max_attention_logit(call)[2] == pytest.approx(6.0 / 4, abs=EXACT)


def test_maxima_of_batches_are_combined_by_maximum():
    calls = [toy(causal=True, sharpness=s, seed=s) for s in (1, 5, 2)]
    expected = torch.stack([dense(call).largest for call in calls]).amax(0)
    found = readings(PROBE, *calls)
    values = [found["max_attention_logit", head].value for head in range(4)]
    assert values == pytest.approx(expected.tolist(), abs=EXACT)


def test_a_bracketed_logit_is_certified_and_never_too_small():
    calls = [single(toy(causal=True, sharpness=s, seed=s)) for s in (1, 5, 2)]
    expected = torch.stack([dense(call).largest for call in calls]).amax(0)
    found = readings(AttentionLogitProbe(exact=False), *calls)
    for head, largest in enumerate(expected.tolist()):
        reading = found["max_attention_logit", head]
        assert reading.bound == Bound.CERTIFIED
        assert reading.lower <= largest <= reading.upper == reading.value


def test_the_soft_cap_bounds_the_logit():
    call = toy(causal=True, sharpness=50.0, softcap=5.0)
    assert (max_attention_logit(call) <= 5.0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("exact", [True, False])
def test_non_finite_scores_give_nan_with_a_status_in_their_head_only(value, exact):
    bad, good = toy(causal=True), toy(causal=True, seed=1)
    bad.query[0, 1] = value
    probe = AttentionLogitProbe(exact=exact)
    for calls in ((bad,), (bad, good), (good, bad)):
        found = readings(probe, *calls)
        for metric in ("max_attention_logit", "sink_mass", "attention_entropy_sink_free"):
            status = [found[metric, head].status for head in range(4)]
            assert status == ["ok", logits.NON_FINITE, "ok", "ok"]
    assert not any(sums.isnan().any() for n, sums in probe.observe(bad).items() if "max:" in n)


def test_nothing_visible_is_nan_with_a_reason():
    found = readings(PROBE, toy(**CASES["nothing visible"]))
    assert found["max_attention_logit", 0].status == "no query sees a key"
    assert found["sink_mass", 0].status == "no query has a choice"


# Sinks


def test_the_sink_is_the_first_key():
    call = toy(causal=True)
    torch.testing.assert_close(sink_mass(call), dense(call).weights[..., 0], rtol=0, atol=EXACT)


@pytest.mark.parametrize("triangle_in_the_mask", [False, True])
def test_after_left_padding_the_sink_is_the_first_token(triangle_in_the_mask):
    mask = left_padding()
    if triangle_in_the_mask:
        mask = mask & torch.ones(40, 40, dtype=torch.bool).tril()
    call = toy(causal=not triangle_in_the_mask, mask=mask)
    found, weights = sink_mass(call), dense(call).weights
    assert found[0, :, :7].isnan().all()
    torch.testing.assert_close(found[0, :, 7:], weights[0, :, 7:, 7], rtol=0, atol=EXACT)
    torch.testing.assert_close(found[1], weights[1, ..., 0], rtol=0, atol=EXACT)


@pytest.mark.parametrize("borders_in_the_mask", [False, True])
def test_every_packed_document_has_its_own_sink(borders_in_the_mask):
    document = torch.arange(40) >= 11
    if borders_in_the_mask:
        packing = {"mask": (document == document[:, None])[None, None]}
    else:
        packing = {"cu_seqlens": torch.tensor([0, 11, 40])}
    call = toy(batch=1, causal=True, **packing)
    found, weights = sink_mass(call), dense(call).weights
    torch.testing.assert_close(found[..., :11], weights[..., :11, 0], rtol=0, atol=EXACT)
    torch.testing.assert_close(found[..., 11:], weights[..., 11:, 11], rtol=0, atol=EXACT)


@pytest.mark.parametrize("window_in_the_mask", [False, True])
def test_a_window_that_has_moved_on_gives_the_sink_nothing(window_in_the_mask):
    at = torch.arange(40)
    if window_in_the_mask:
        reach = {"mask": (at > at[:, None] - 6)[None, None]}
    else:
        reach = {"window": 6}
    call = toy(causal=True, **reach)
    found = sink_mass(call)
    torch.testing.assert_close(found[..., :6], dense(call).weights[..., :6, 0], rtol=0, atol=EXACT)
    assert (found[..., 6:] == 0).all()


def test_keys_from_a_cache_keep_their_sink():
    call = toy(causal=True, queries=3)
    torch.testing.assert_close(sink_mass(call), dense(call).weights[..., 0], rtol=0, atol=EXACT)


@pytest.mark.parametrize("case", ["softcap", "bias", "a mask for each head", "grouped keys"])
def test_the_mass_is_right_whatever_dresses_the_scores(case):
    call = toy(**CASES[case])
    judge = dense(call)
    first = judge.visible.to(torch.uint8).argmax(-1, keepdim=True)
    expected = judge.weights.gather(-1, first)[..., 0]
    found = sink_mass(call)
    counted = judge.seen & ((found > 0) | (case != "a mask for each head"))
    torch.testing.assert_close(found[counted], expected[counted], rtol=0, atol=EXACT)


def test_a_learned_sink_is_the_sink():
    call = toy(causal=True, sinks=random(4))
    torch.testing.assert_close(sink_mass(call), dense(call).weights[..., -1], rtol=0, atol=EXACT)


@pytest.mark.parametrize("case", ["causal", "sinks"])
def test_sink_free_entropy_is_that_of_the_rest_renormalised(case):
    call = toy(**CASES[case])
    weights = dense(call).weights
    rest = weights[..., :-1] if case == "sinks" else weights[..., 1:]
    some = rest.sum(-1) > 0
    rest = rest / rest.sum(-1, keepdim=True)
    found = sink_free_entropy(statistics(call).entropy, sink_mass(call))
    expected = torch.special.entr(rest).sum(-1)
    torch.testing.assert_close(found[some], expected[some], rtol=0, atol=1e3 * EXACT)
    p0 = sink_mass(call)
    printed = (statistics(call).entropy + p0 * p0.log()) / (1 - p0) + (1 - p0).log()
    torch.testing.assert_close(found[some], printed[some], rtol=0, atol=1e3 * EXACT)
    assert found[~some].isnan().all()


def test_readings_weigh_rows_by_what_they_keep_off_the_sink():
    call = toy(causal=True)
    weights = dense(call).weights[:, 0, 1:]  # head 0, rows with a choice
    elsewhere = 1 - weights[..., 0]
    rest = weights[..., 1:] / elsewhere[..., None]
    free = torch.special.entr(rest).sum(-1)
    found = readings(PROBE, call)
    assert found["sink_mass", 0].value == pytest.approx(float(weights[..., 0].mean()))
    expected = float((elsewhere * free).sum() / elsewhere.sum())
    assert found["attention_entropy_sink_free", 0].value == pytest.approx(expected)


def test_a_head_that_only_looks_at_the_sink_has_no_other_entropy():
    call = toy(causal=True, dtype=torch.float32)
    call.query[:] = 5.0
    call.key[:] = 0.0
    call.key[:, :, 0] = 5.0
    found = readings(PROBE, call)
    assert found["sink_mass", 0].value == pytest.approx(1.0)
    assert found["attention_entropy_sink_free", 0].status == "all attention is on the sink"

"""A call is read as its implementation means it."""

import pytest
import torch
import torch.nn.functional as F

from joma._core.errors import JomaError
from joma.probes import calls
from unit.probes.zoo import DenseEntropy

# float64 twins of float32 calls.
TOLERANCE = 1e-5


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 8, generator=generator)
    key, value = torch.randn(2, 2, 2, 6, 8, generator=generator)
    return query, key, value


def output(call, value):
    value = value.repeat_interleave(call.query.shape[1] // value.shape[1], 1)
    return (DenseEntropy.probabilities(call) @ value.double()[:, :, : call.key.shape[2]]).float()


@pytest.mark.parametrize("mask", ["none", "boolean", "additive", "two dimensions", "broadcast"])
def test_scaled_dot_product_attention_is_read_rightly(qkv, mask):
    query, key, value = qkv
    generator = torch.Generator().manual_seed(1)
    given = {
        "none": None,
        "boolean": torch.rand(2, 1, 6, 6, generator=generator) < 0.7,
        "additive": torch.randn(2, 4, 6, 6, generator=generator),
        "two dimensions": torch.ones(6, 6, dtype=torch.bool).tril(),
        "broadcast": torch.rand(2, 1, 1, 6, generator=generator) < 0.9,
    }[mask]
    if given is not None and given.dtype == torch.bool:
        given[..., 0] = True
    expected = F.scaled_dot_product_attention(
        query, key, value, attn_mask=given, enable_gqa=True, is_causal=mask == "none", scale=0.7
    )
    call = calls.read_sdpa(
        query, key, value, attn_mask=given, enable_gqa=True, is_causal=mask == "none", scale=0.7
    )
    torch.testing.assert_close(output(call, value), expected, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(calls.dense(call), DenseEntropy.probabilities(call))


def test_a_mask_that_only_hides_is_not_a_bias(qkv):
    query, key, _ = qkv
    lowest = torch.finfo(torch.float32).min
    mask = torch.zeros(2, 1, 6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), lowest)
    call = calls.read("eager", query, key, mask)
    assert call.bias is None
    assert torch.equal(call.mask, mask == 0)


def test_a_mask_that_also_adds_keeps_both(qkv):
    query, key, _ = qkv
    mask = torch.linspace(-1, 1, 6).expand(2, 1, 6, 6).clone()
    mask[..., 5] = torch.finfo(torch.float32).min
    call = calls.read("eager", query, key, mask)
    assert call.mask is None
    assert bool(call.bias[..., 5].isinf().all())
    assert torch.equal(call.bias[..., :5], mask[..., :5])


@pytest.mark.parametrize(
    ("kind", "masked", "causal"),
    [
        ("sdpa", False, True),
        ("sdpa", True, False),
        ("eager", False, False),
        ("flex", False, False),
        ("flash", True, True),
        ("flash", False, True),
    ],
)
def test_causal_means_what_the_implementation_makes_of_it(qkv, kind, masked, causal):
    query, key, _ = qkv
    mask = None
    if masked:
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask = mask if kind == "flash" else mask[:, None, None]
    assert calls.read(kind, query, key, mask, causal=True).causal is causal


def test_one_query_with_a_cache_sees_every_key(qkv):
    query, key, _ = qkv
    assert not calls.read("sdpa", query[:, :, -1:], key, causal=True).causal


def test_a_static_cache_is_cut_to_its_filled_part(qkv):
    query, key, _ = qkv
    call = calls.read("sdpa", query[:, :, :4], key, causal=True)
    assert call.key.shape[2] == 4


def test_tokens_that_are_padding_neither_see_nor_are_seen(qkv):
    query, key, _ = qkv
    real = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    call = calls.read("flash", query, key, real, causal=True, window=3)
    weights = DenseEntropy.probabilities(call)
    assert call.window == 3
    assert bool(weights[1, :, :2].isnan().all())
    assert weights[1, :, 2:, :2].abs().max() == 0
    assert weights[0, :, 5, :3].abs().max() == 0


def test_a_block_mask_is_read(qkv):
    from torch.nn.attention.flex_attention import create_block_mask

    query, key, _ = qkv

    def causal(batch, head, query, key):
        return query >= key

    mask = create_block_mask(causal, 2, None, 6, 6, device="cpu")
    call = calls.read("flex", query, key, mask)
    assert torch.equal(call.mask[0, 0], torch.ones(6, 6, dtype=torch.bool).tril())


def test_an_unreadable_mask_is_refused(qkv):
    query, key, _ = qkv
    with pytest.raises(JomaError, match="of type str cannot be read"):
        calls.read("sdpa", query, key, "causal")
    with pytest.raises(JomaError, match=r"of shape \(2, 6, 6\) cannot be read"):
        calls.read("sdpa", query, key, torch.ones(2, 6, 6))


def test_scores_are_a_call_by_themselves(qkv):
    query, key, _ = qkv
    scores = query @ key.repeat_interleave(2, 1).mT
    scores[..., 5] = -1e9
    call = calls.read_softmax(scores, None)
    assert bool(call.bias[..., 5].isinf().all())
    expected = scores.double().softmax(-1)
    torch.testing.assert_close(DenseEntropy.probabilities(call), expected)
    flat = calls.read_softmax(scores.flatten(0, 1), 4)
    assert torch.equal(flat.bias, call.bias)
    with pytest.raises(JomaError, match="does not tell its heads"):
        calls.read_softmax(scores.flatten(0, 1), None)


def test_dense_knows_windows_sinks_and_caps(qkv):
    query, key, _ = qkv
    call = calls.read(
        "flash",
        query,
        key,
        causal=True,
        window=3,
        softcap=2.0,
        sinks=torch.linspace(-1, 1, 4),
    )
    torch.testing.assert_close(calls.dense(call), DenseEntropy.probabilities(call))

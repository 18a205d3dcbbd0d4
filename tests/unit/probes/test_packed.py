"""Packed documents do not mix, whatever way a model is told where they end."""

import pytest
import torch

from joma.probes import calls
from joma.probes.observe import observe
from unit.probes.zoo import VOCABULARY, DenseEntropy, build

pytestmark = pytest.mark.hf

# The same float32 attention, computed in rows of another length.
TOLERANCE = 1e-5
LENGTHS = [4, 7, 5]


def documents():
    tokens = (torch.arange(sum(LENGTHS)) * 5 + 3) % VOCABULARY
    return tokens.split(LENGTHS)


def apart(model):
    """Nats and rows of each document alone, added up."""
    seen = observe(model, [DenseEntropy()])
    with seen:
        for tokens in documents():
            model(input_ids=tokens[None])
    return [r.value for r in seen.streamed()]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_neox", "qwen3"])
def test_positions_that_start_anew_separate_documents(name, implementation):
    model = build(name, implementation)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    with observe(model, [DenseEntropy()]) as seen:
        model(input_ids=torch.cat(documents())[None], position_ids=positions, use_cache=False)
    assert [r.value for r in seen.streamed()] == pytest.approx(apart(model), abs=TOLERANCE)


@pytest.fixture
def flash():
    """A stand-in for flash attention: reads borders and windows, asks for its own name."""
    pytest.importorskip("transformers")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    def forward(module, query, key, value, attention_mask=None, scaling=None, **kwargs):
        assert module.config._attn_implementation == "flash_stand_in"
        length = query.shape[2]
        shown = torch.ones(length, length, dtype=torch.bool).tril()
        borders = kwargs.get("cu_seq_lens_q")
        if borders is None and attention_mask is None and kwargs.get("position_ids") is not None:
            starts = (kwargs["position_ids"][0] == 0).nonzero().flatten().tolist()
            borders = torch.tensor([*starts, length])
        if borders is not None:
            document = torch.bucketize(torch.arange(length), borders, right=True)
            shown = shown & (document[:, None] == document)
        if kwargs.get("sliding_window"):
            shown = shown & ~torch.ones_like(shown).tril(-kwargs["sliding_window"])
        shown = shown[None, None]
        if attention_mask is not None:
            shown = shown & attention_mask[:, None, None].bool()
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        scores = (scaling * query @ key.mT).masked_fill(~shown, -1e30)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    AttentionInterface.register("flash_stand_in", forward)
    AttentionMaskInterface.register("flash_stand_in", flash_attention_mask)
    yield "flash_stand_in"
    AttentionInterface._global_mapping.pop("flash_stand_in")
    AttentionMaskInterface._global_mapping.pop("flash_stand_in")


@pytest.mark.parametrize("told_by", ["borders", "positions"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_flash_attention_separates_documents_and_is_read_so(name, told_by, flash):
    model = build(name)
    expected = apart(model)
    model.config._attn_implementation_internal = flash
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    borders = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)])
    kwargs = {"position_ids": positions, "use_cache": False}
    if told_by == "borders":
        kwargs |= {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders}
    with observe(model, [DenseEntropy()]) as seen:
        model(input_ids=torch.cat(documents())[None], **kwargs)
    assert seen.plan().route == "interface"
    assert [r.value for r in seen.streamed()] == pytest.approx(expected, abs=TOLERANCE)


def test_borders_are_honoured_where_there_is_no_mask():
    query = torch.randn(1, 2, 16, 4, generator=torch.Generator().manual_seed(0))
    borders = torch.tensor([0, 4, 11, 16], dtype=torch.int32)
    call = calls.read("sdpa", query, query, cu_seqlens=borders, causal=True)
    weights = DenseEntropy.probabilities(call)
    assert weights[..., 4:11, :4].abs().max() == 0
    torch.testing.assert_close(calls.dense(call), weights)

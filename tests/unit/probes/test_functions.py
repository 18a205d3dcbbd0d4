"""Models outside transformers: seen by the functions they call, or by `tap`."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from joma.probes.attach import ObservationWarning
from joma.probes.observe import observe
from joma.probes.tap import tap
from unit.probes.zoo import DenseEntropy, entropy

# float32 against float64.
TOLERANCE = 1e-5


class Attention(nn.Module):
    """Causal attention in one of several spellings; keeps its probabilities for the test."""

    def __init__(self, spelling):
        super().__init__()
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.n_head, self.spelling, self.probabilities = 2, spelling, None

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf)
        self.probabilities = scores.softmax(-1).detach() if self.spelling == "sdpa" else None
        out = getattr(self, self.spelling)(q, k, v, scores)
        return self.proj(out.transpose(1, 2).flatten(-2))

    def sdpa(self, q, k, v, scores):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def masked_sdpa(self, q, k, v, scores):
        return F.scaled_dot_product_attention(
            query=q, key=k, value=v, attn_mask=scores.detach().isfinite()
        )

    def biased_sdpa(self, q, k, v, scores):
        mask = torch.zeros_like(scores[0, 0]).masked_fill(scores[0, 0].isinf(), -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def softmax(self, q, k, v, scores):
        return F.dropout(F.softmax(scores, dim=-1), 0.0) @ v

    def flat_softmax(self, q, k, v, scores):
        weights = torch.softmax(scores.flatten(0, 1), -1)  # [batch * head, query, key]
        return torch.bmm(weights, v.flatten(0, 1)).unflatten(0, (-1, 2))

    def einsum(self, q, k, v, scores):
        return torch.einsum("bhqk,bhkd->bhqd", nn.Softmax(-1)(scores), v)

    def lowest_number(self, q, k, v, scores):
        return scores.nan_to_num(neginf=-1e9).softmax(-1) @ v

    def kernel(self, q, k, v, scores):
        tap(q, k, causal=True)
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


SPELLINGS = [
    "sdpa",
    "masked_sdpa",
    "biased_sdpa",
    "softmax",
    "flat_softmax",
    "einsum",
    "lowest_number",
    "kernel",
]


class Block(nn.Module):
    def __init__(self, spelling):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), Attention(spelling)
        self.mlp = nn.Sequential(nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 16))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, spelling, blocks=3):
        super().__init__()
        self.wte = nn.Embedding(30, 16)
        self.h = nn.ModuleList(Block(spelling) for _ in range(blocks))
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return x


TOKENS = torch.arange(24).view(2, 12)


def values(seen):
    return [r.value for r in seen.streamed() if r.metric == "entropy"]


@pytest.fixture(scope="module")
def expected():
    """Mean entropy per layer and head, by the probabilities the model kept."""
    model = Model("sdpa")
    model(TOKENS)
    kept = [block.attn.probabilities for block in model.h]
    return [h for p in kept for h in entropy(p).mean((0, 2)).tolist()]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_attention_is_seen(spelling, expected):
    model = Model(spelling)
    bare = model(TOKENS)
    with observe(model, [DenseEntropy()], example={"tokens": TOKENS}) as seen:
        assert torch.equal(model(TOKENS), bare)
    assert seen.family == "structure"
    assert values(seen) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("spelling", ["sdpa", "softmax", "kernel"])
def test_gradients_are_bit_identical(spelling):
    gradients = []
    for observed in (False, True):
        model = Model(spelling)
        if observed:
            with observe(model, [DenseEntropy()]):
                model(TOKENS).cos().mean().backward()
        else:
            model(TOKENS).cos().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_attention_without_a_name_is_numbered_in_order(expected):
    class Anonymous(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.parts = nn.ParameterList(model.parameters())  # nothing here is called attention
            self.run = [model]

        def forward(self, tokens):
            return self.run[0](tokens)

    model = Anonymous(Model("sdpa"))
    with observe(model, [DenseEntropy()]) as seen:
        model(TOKENS)
    assert seen.family == "unknown"
    assert [r.layer for r in seen.streamed()] == [0, 0, 1, 1, 2, 2]
    assert values(seen) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("training", [True, False])
def test_multi_head_attention_of_torch_is_seen(training):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    attention = model.layers[0].self_attn
    weights = attention(x, x, x, average_attn_weights=False)[1]
    with observe(model, [DenseEntropy()]) as seen:
        model(x)
    found = values(seen)
    assert len(found) == 4
    assert found[:2] == pytest.approx(entropy(weights).mean((0, 2)).tolist(), abs=TOLERANCE)


def test_cross_attention_with_fewer_keys_than_queries_keeps_its_triangle():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.ModuleList([nn.Identity()])

        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    generator = torch.Generator().manual_seed(0)
    for queries, keys in ((7, 4), (4, 7)):
        q = torch.randn(1, 1, queries, 8, generator=generator)
        k = torch.randn(1, 1, keys, 8, generator=generator)
        shown = torch.ones(queries, keys, dtype=torch.bool).tril()
        scores = (q @ k.mT / 8**0.5).masked_fill(~shown, -torch.inf)
        model = Cross()
        with observe(model, [DenseEntropy()]) as seen:
            model(q, k)
        (value,) = values(seen)
        assert value == pytest.approx(entropy(scores.softmax(-1)).mean().item(), abs=TOLERANCE)


def test_tap_does_nothing_while_nobody_observes():
    q = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert tap(q, q, causal=True) is None


def test_hooks_are_gone_afterwards():
    model = Model("softmax")
    with observe(model, [DenseEntropy()]):
        model(TOKENS)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own, between two blocks
@pytest.mark.parametrize("how", ["wrapped", "in place", "blocks"])
def test_a_compiled_model_is_observed_in_a_forward_of_its_own(how, expected):
    model = Model("sdpa")
    bare = model(TOKENS)
    if how == "wrapped":
        run = torch.compile(model, backend="eager", fullgraph=True)
    elif how == "in place":
        run = model
        model.compile(backend="eager", fullgraph=True)
    else:
        run = model
        for block in model.h:
            block.compile(backend="eager", fullgraph=True)
    run(TOKENS)
    with (
        pytest.warns(ObservationWarning, match="in a forward of its own"),
        observe(run, [DenseEntropy()]) as seen,
    ):
        torch.testing.assert_close(run(TOKENS), bare)
    assert values(seen) == pytest.approx(expected, abs=TOLERANCE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ObservationWarning)
        run(TOKENS)
        with seen:  # said once
            run(TOKENS)


def test_a_separate_forward_does_not_disturb_dropout(expected):
    class Noisy(Model):
        def forward(self, tokens):
            return F.dropout(super().forward(tokens), 0.5, self.training)

    model = Noisy("sdpa").train()
    with torch.random.fork_rng():
        outputs = []
        for separate in (None, True):
            torch.manual_seed(0)
            seen = observe(model, [DenseEntropy()], separate=separate)
            with seen:
                outputs += [model(TOKENS), model(TOKENS)]
        assert torch.equal(outputs[0], outputs[2])
        assert torch.equal(outputs[1], outputs[3])
    assert model.training
    assert values(seen) == pytest.approx(expected, abs=TOLERANCE)

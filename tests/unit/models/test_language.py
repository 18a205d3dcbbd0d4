"""The language model is torch's encoder under a causal mask, and probes see all of it."""

import math
import warnings

import pytest
import torch
from torch import nn

from joma._core.errors import JomaError
from joma.metrics.entropy import PROBE as entropy
from joma.metrics.rank import PROBE as rank
from joma.models import objectives
from joma.models.language import LanguageConfig, LanguageModel
from joma.probes.observe import observe

# float32 against torch's own layers, which order their sums differently.
TOLERANCE = 2e-5

VOCAB, LENGTH = 50, 35


def model_of(seed=1, **options):
    return LanguageModel(LanguageConfig(**{"vocab": VOCAB, "dropout": 0.0} | options), seed)


@pytest.fixture(autouse=True)
def _seeded():
    """Layers of torch draw from the global generator: give them a copy of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def tokens():
    return torch.randint(VOCAB, (4, LENGTH), generator=torch.Generator().manual_seed(0))


def torch_twin(model):
    """The same weights in `nn.TransformerEncoderLayer`s."""
    c = model.config
    twins = []
    for block in model.blocks:
        twin = nn.TransformerEncoderLayer(
            c.embed, c.num_heads, c.hidden, dropout=c.dropout, batch_first=True
        )
        a = block.attention
        parts = (a.query, a.key, a.value)
        twin.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat([p.weight for p in parts]),
                "self_attn.in_proj_bias": torch.cat([p.bias for p in parts]),
                "self_attn.out_proj.weight": a.output.weight,
                "self_attn.out_proj.bias": a.output.bias,
                "linear1.weight": block.mlp.lower.weight,
                "linear1.bias": block.mlp.lower.bias,
                "linear2.weight": block.mlp.upper.weight,
                "linear2.bias": block.mlp.upper.bias,
                "norm1.weight": block.attention_norm.weight,
                "norm1.bias": block.attention_norm.bias,
                "norm2.weight": block.mlp_norm.weight,
                "norm2.bias": block.mlp_norm.bias,
            }
        )
        twins.append(twin)
    return twins


def positions(length, width):
    """Written out as a double loop."""
    rows = [
        [
            (math.cos if i % 2 else math.sin)(t / 10_000 ** (2 * (i // 2) / width))
            for i in range(width)
        ]
        for t in range(length)
    ]
    return torch.tensor(rows)


def twin_entropies(model, tokens):
    """Logits of the twin, and per layer the mean entropy of its dense attention."""
    width, length = model.config.embed, tokens.shape[1]
    x = model.embedding(tokens) * math.sqrt(width) + positions(length, width)
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    found = []
    for twin in torch_twin(model):
        _, weights = twin.self_attn(x, x, x, attn_mask=mask, average_attn_weights=False)
        found.append(float(torch.special.entr(weights).sum(-1).mean()))
        x = twin(x, src_mask=mask)
    return x @ model.readout.weight.T + model.readout.bias, found


def readings(model, tokens, *probes):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with observe(model, probes) as seen:
            model(tokens)
        return seen, list(seen.readings())


@pytest.mark.parametrize("heads", [1, 4])
def test_it_computes_what_torchs_encoder_layers_compute(tokens, heads):
    model = model_of(layers=3, num_heads=heads)
    with torch.no_grad():
        expected, _ = twin_entropies(model, tokens)
        torch.testing.assert_close(model(tokens), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_every_layer_is_observed_with_the_entropy_of_a_dense_twin(tokens):
    model = model_of(layers=3)
    seen, found = readings(model, tokens, entropy)
    mine = {r.layer: r.value for r in found if r.metric == "attention_entropy"}
    with torch.no_grad():
        _, dense = twin_entropies(model, tokens)
    assert seen.family == "joma_lm"
    assert list(mine) == [0, 1, 2]
    assert list(mine.values()) == pytest.approx(dense, abs=TOLERANCE)


def test_attention_starts_nearly_uniform(tokens):
    _, found = readings(model_of(), tokens, entropy)
    (value,) = (r.value for r in found if r.metric == "attention_entropy")
    ceiling = math.lgamma(LENGTH + 1) / LENGTH  # ln(35!)/35 = 2.632
    assert 0.9 * ceiling < value < ceiling


def test_the_square_lower_matrix_is_found_by_name(tokens):
    model = model_of(layers=2, same_start=False)
    _, found = readings(model, tokens, rank)
    ranks = {r.layer: r.value for r in found if r.metric == "stable_rank"}
    for layer, block in enumerate(model.blocks):
        singular = torch.linalg.svdvals(block.mlp.lower.weight.detach())
        expected = float((singular / singular[0]).square().sum())
        assert ranks[layer] == pytest.approx(expected, rel=1e-3)  # the probe certifies 1e-3


SWITCHES = [
    {"mlp": "none"},
    {"mlp": "frozen"},
    {"norm": "rms"},
    {"norm": "none"},
    {"norm_place": "pre"},
    {"residual": False},
    {"activation": "linear"},
    {"activation": "gelu"},
    {"positions": "none"},
    {"bf16_readout": True},
    {"frozen": ("embedding", "readout")},
]


@pytest.mark.parametrize("switch", SWITCHES, ids=str)
def test_every_variant_trains_and_is_observed_in_every_layer(tokens, switch):
    model = model_of(layers=2, embed=16, hidden=16, **switch)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=1e-2)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        loss = objectives.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    _, found = readings(model, tokens, entropy)
    assert {r.layer for r in found} == {0, 1}


@pytest.mark.parametrize(
    ("switch", "frozen"),
    [
        ({}, set()),
        ({"mlp": "frozen"}, {"mlp"}),
        ({"frozen": ("attention",)}, {"attention"}),
        ({"frozen": ("norm",), "norm_place": "pre"}, {"attention_norm", "mlp_norm", "norm"}),
        ({"frozen": ("embedding", "readout")}, {"embedding", "readout"}),
    ],
)
def test_exactly_the_frozen_parts_keep_their_values(switch, frozen):
    model = model_of(embed=8, hidden=8, **switch)
    fixed = {n for n, p in model.named_parameters() if not p.requires_grad}
    parts = {n.split(".")[2] if n.startswith("blocks") else n.split(".")[0] for n in fixed}
    assert parts == frozen


def test_no_position_sees_a_later_one(tokens):
    model = model_of(layers=2)
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20], rtol=0, atol=TOLERANCE)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-2)


def test_without_positions_only_the_set_of_earlier_tokens_counts(tokens):
    model = model_of(positions="none")
    swapped = tokens.clone()
    swapped[:, [0, 1]] = tokens[:, [1, 0]]
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens)[:, 2:], model(swapped)[:, 2:], rtol=0, atol=TOLERANCE
        )


def test_a_bfloat16_readout_changes_logits_by_its_rounding_only(tokens):
    plain, rough = model_of(), model_of(bf16_readout=True)
    with torch.no_grad():
        expected, found = plain(tokens), rough(tokens)
    assert found.dtype == torch.float32
    assert 0 < float((found - expected).abs().max()) < 0.02 * float(expected.abs().max())


@pytest.mark.parametrize("same", [True, False])
def test_layers_start_alike_unless_told_otherwise(same):
    first, second = model_of(layers=2, embed=8, hidden=8, same_start=same).blocks
    assert torch.equal(first.mlp.lower.weight, second.mlp.lower.weight) is same


def test_one_seed_gives_one_model_and_the_global_state_is_left_alone(tokens):
    before = torch.get_rng_state()
    first, again, other = model_of(1), model_of(1), model_of(2)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        assert torch.equal(first(tokens), again(tokens))
        assert not torch.equal(first(tokens), other(tokens))


def test_weights_have_the_spread_of_torchs_own_initialisation():
    model = model_of()
    theirs = dict(nn.TransformerEncoderLayer(200, 1, 200).named_parameters())
    a, mlp = model.blocks[0].attention, model.blocks[0].mlp
    pairs = [
        (a.query.weight, theirs["self_attn.in_proj_weight"]),
        (a.output.weight, theirs["self_attn.out_proj.weight"]),
        (mlp.lower.weight, theirs["linear1.weight"]),
        (mlp.upper.weight, theirs["linear2.weight"]),
    ]
    for mine, other in pairs:  # 40 000 numbers: the spread is known to 0.3 %
        assert mine.detach().std().item() == pytest.approx(other.detach().std().item(), rel=0.02)


def test_wrong_requests_are_refused_with_what_to_do():
    with pytest.raises(JomaError, match="multiple of num_heads; got 200 and 3"):
        LanguageConfig(num_heads=3)
    with pytest.raises(JomaError, match="even embed; got 9"):
        LanguageConfig(embed=9)
    with pytest.raises(JomaError, match=r"may have 8 tokens; got 9\. Build the model"):
        model_of(embed=8, hidden=8, max_length=8)(torch.zeros(1, 9, dtype=torch.long))

"""Words of a language model are read as the theory has it, and the last rung obeys its law."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr

from joma.data.text import Window
from joma.experiments import _mechanism_claims as claims, mechanism
from joma.experiments._language import loss
from joma.experiments._mechanism_claims import MEAN, SUM, metric
from joma.experiments._mechanism_model import FROZEN, RUNGS, Shape, attention_of, build, twin
from joma.experiments._mechanism_tokens import partial_spearman, scores, spearman, words
from joma.experiments.base import Evidence, Verdict, records
from joma.metrics.entropy import PROBE
from joma.probes.observe import observe

SHAPE = Shape(vocab=12, hidden=8)
FLOAT32 = 1e-5  # of sums over a few dozen numbers near 1
LAW = 2e-5  # of changes near .1, in float32 over 40 steps


@pytest.fixture
def window(rng):
    drawn = torch.from_numpy(rng.integers(0, SHAPE.vocab, (4, 9)))
    return Window(drawn[:, :-1], drawn[:, 1:])


@pytest.mark.parametrize("rung", ["full", "no_norm", "orthonormal", "values"])
def test_logits_are_those_of_the_attention_call(rung, window):
    model = build(SHAPE, rung, 0)
    with observe(model, [PROBE]) as seen, torch.no_grad():
        model(window.inputs)
    call = next(r.value for r in seen.readings() if r.metric == "attention_entropy")
    z = scores(model, window.inputs).detach()
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    p = z.masked_fill(hidden, -torch.inf).softmax(-1)
    assert float(torch.special.entr(p).sum(-1).mean()) == pytest.approx(call, abs=FLOAT32)


def test_the_mean_logit_is_over_the_pairs_that_are_seen(window):
    model = build(SHAPE, "full", 0)
    z = scores(model, window.inputs).detach().numpy()
    word = int(window.inputs[0, 2])
    tokens = window.inputs.numpy()
    pairs = [
        z[b, q, k] for b in range(4) for q in range(8) for k in range(q + 1) if tokens[b, k] == word
    ]
    assert words(model, (window,)).logit[word] == pytest.approx(np.mean(pairs), abs=FLOAT32)


def test_v_is_what_full_attention_to_a_word_adds_to_the_nodes():
    model = build(SHAPE, "full", 3)
    block = model.blocks[0]
    with torch.no_grad():
        block.attention_norm.weight.uniform_(0.5, 2.0)
        u = SHAPE.vocab**0.5 * model.embedding.weight
        added = block.attention.output(block.attention.value(u))  # biases start at 0
        nodes = F.linear(block.attention_norm.weight * added, block.mlp.lower.weight)
    found = words(model, (Window(torch.zeros(1, 1).long(), torch.zeros(1, 1).long()),))
    energy = (0.5 * nodes.square().sum(1)).numpy()
    np.testing.assert_allclose(found.energy, energy, rtol=FLOAT32)


def test_each_rung_keeps_what_was_restored_below_it():
    models = {rung: build(SHAPE, rung, 0) for rung in RUNGS}
    assert models["no_norm"].config.norm == "none"
    for rung in RUNGS[3:]:
        u = SHAPE.vocab**0.5 * models[rung].embedding.weight
        torch.testing.assert_close(u @ u.T, torch.eye(SHAPE.vocab))
        assert not models[rung].embedding.weight.requires_grad
        assert models[rung].config.norm == "none"
    for rung in RUNGS[5:]:
        assert not models[rung].config.residual
    rows = [len(attention_of(models[rung]).z) for rung in RUNGS[6:]]
    assert rows == [SHAPE.vocab, SHAPE.vocab, 1]


def test_a_twin_differs_in_what_is_trained_only():
    for rung in FROZEN:
        model, frozen = build(SHAPE, rung, 0), build(SHAPE, twin(rung), 0)
        for name, value in model.state_dict().items():
            assert torch.equal(value, frozen.state_dict()[name])
        assert not frozen.blocks[0].mlp.lower.weight.requires_grad


@pytest.mark.parametrize("rung", ["exp", "one_query"])
def test_summed_logits_obey_theorem_1_up_to_the_squares_of_the_steps(rung, window):
    model = build(SHAPE, rung, 0)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    start, lower = words(model, (window,)), model.blocks[0].mlp.lower.weight
    squares = np.zeros(SHAPE.vocab)
    for _ in range(40):
        before = lower.detach().clone()
        model.zero_grad()
        loss(model, (window,)).backward()
        optimiser.step()
        squares += (lower.detach() - before).square().sum(0).numpy()
    end = words(model, (window,))
    moved, energy = end.summed - start.summed, end.energy - start.energy
    assert np.abs(moved).max() > 100 * LAW
    np.testing.assert_allclose(moved, energy - squares / 2, atol=LAW)


def test_softmax_attention_does_not(window):
    model = build(SHAPE, "free_logits", 0)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    start = words(model, (window,))
    for _ in range(40):
        model.zero_grad()
        loss(model, (window,)).backward()
        optimiser.step()
    end = words(model, (window,))
    difference = (end.summed - start.summed) - (end.energy - start.energy)
    assert np.abs(difference).max() > 100 * LAW


def test_rank_correlation_is_the_usual_one_and_undefined_for_constants(rng):
    a, b = rng.integers(0, 9, (2, 50)).astype(float)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert np.isnan(spearman(a, np.ones(50)))


def test_what_controls_explain_is_taken_out(rng):
    cause, noise = rng.standard_normal((2, 2000))
    other = rng.standard_normal(2000)
    a, b = cause + 0.3 * noise, cause + 0.3 * other
    assert spearman(a, b) > 0.8
    assert abs(partial_spearman(a, b, cause[:, None])) < 0.1  # 2000 words: noise of .02


def test_agreement_appears_from_the_first_rung_that_stays_strong():
    assert claims.first_strong([0.95, *[0.2] * 6, 0.95, 1.0]) == "exp"
    assert claims.first_strong([1.0] * 9) == "full"
    assert claims.first_strong([1.0] * 8 + [0.5]) is None


@pytest.mark.parametrize(
    ("full", "value", "verdict"),
    [
        (0.6, 0.3, Verdict.HOLDS),
        (0.38, 0.3, Verdict.NOT_DISTINGUISHABLE),
        (0.6, -0.7, Verdict.NOT_DISTINGUISHABLE),
        (-0.1, 0.0, Verdict.FAILS),
    ],
)
def test_a_control_as_good_takes_the_evidence_away(full, value, verdict):
    numbers = {
        ("full", metric(MEAN, claims.VALUE_NORM)): value,
        (twin("full"), metric(MEAN, claims.SPEARMAN)): 0.1,
        ("full", metric(SUM, claims.SPEARMAN)): 0.0,
    }
    for what in (claims.SPEARMAN, claims.PARTIAL, claims.CORRELATION, claims.SLOPE):
        numbers["full", metric(MEAN, what)] = full
    numbers["full", metric(MEAN, claims.FREQUENCY)] = 0.2
    tables = [
        records(f"mechanism/{arm}", 0, metric=name, step=[9], value=[number])
        for (arm, name), number in numbers.items()
    ]
    assert claims.operates(Evidence(pa.concat_tables(tables))).verdict is verdict


def test_an_arm_is_trained_once(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("JOMA_SHARED", str(shared))
    config = mechanism.Config(shape=Shape(vocab=16, hidden=4), at=(1, 3), skip=200)
    first = mechanism.train_arm(config, "full", 0, tmp_path)
    monkeypatch.setattr(mechanism, "build", None)
    again = mechanism.train_arm(config, "full", 0, tmp_path)
    assert str(first.to_pylist()) == str(again.to_pylist())
    assert {1.0, 3.0} == set(first["step"].to_pylist())

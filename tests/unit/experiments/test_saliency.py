"""Saliency: the looks against autograd and the theory, and rules that can go either way."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

from joma.data.text import Window
from joma.experiments import _figure2, _runner, _saliency_text as text, _saliency_toy as toy
from joma.experiments._saliency import (
    ATTENTION,
    COSINE,
    DRIFT,
    ENTROPY,
    FREQUENCY,
    SHUFFLED,
    WEIGHTS,
    Look,
    cosine,
    movement,
    rank_correlation,
    ranking,
)
from joma.experiments._saliency_steps import at_steps
from joma.experiments.base import Curve, Evidence, Verdict, records
from joma.experiments.saliency import EXPERIMENT, phase, ranks, setting, stays, toy_steps
from joma.models.language import LanguageConfig, LanguageModel
from joma.records.tables import solid
from joma.theory import flow, saliency

EXACT = 1e-12  # float64 on both sides; sums are taken in another order
SINGLE = 1e-5  # float32 gradients of a language model
TINY = LanguageConfig(vocab=12, embed=8, hidden=6, dropout=0.0)


def evidence(*tables):
    return Evidence(pa.concat_tables([solid(_runner._named("saliency", t)) for t in tables]))


def look_of(delta, v, z, entropy=1.0, shuffled=None):
    return Look(
        delta=delta,
        shuffled=delta if shuffled is None else shuffled,
        frequency=np.arange(1.0, 1 + len(delta)),
        v=v,
        z=z,
        entropy=np.array(entropy),
    )


# --- statistics ----------------------------------------------------------------------------------


def test_rank_correlation_is_the_mean_over_nodes(rng):
    order = np.arange(5.0)[:, None]
    first, second = np.hstack([order, order]), np.hstack([np.exp(order), -order])
    assert rank_correlation(first, second) == pytest.approx(0.0, abs=EXACT)
    assert rank_correlation(first[:, 0], second[:, 0]) == pytest.approx(1.0, abs=EXACT)


def test_tokens_without_an_order_have_no_rank_correlation():
    assert np.isnan(rank_correlation(np.ones(4), np.arange(4.0)))


def test_growth_along_the_saliency_is_ranked_and_along_the_frequency_is_not(rng):
    delta = rng.standard_normal((30, 4))
    start = look_of(delta, np.zeros((30, 4)), np.zeros(30), shuffled=rng.permuted(delta, axis=0))
    later = look_of(delta, 2 * delta, np.linalg.norm(delta, axis=1))
    found = evidence(*ranking("toy", 0, {0: start, 10: later}, 0))
    for metric in (WEIGHTS, ATTENTION):
        assert found.curve(metric, arm="toy", seed=0).values[-1] == pytest.approx(1.0, abs=EXACT)
        for ending in (FREQUENCY, SHUFFLED):
            assert abs(found.curve(metric, arm="toy" + ending, seed=0).values[-1]) < 0.5


def test_a_saliency_that_shrinks_keeps_its_direction_and_drifts(rng):
    delta = rng.standard_normal((6, 3))
    looks = {s: look_of(c * delta, delta, delta[:, 0]) for s, c in ((0, 1.0), (5, 0.25))}
    found = evidence(*movement("toy", 0, looks))
    np.testing.assert_allclose(found.curve(COSINE, arm="toy", seed=0).values, 1, atol=EXACT)
    np.testing.assert_allclose(found.curve(DRIFT, arm="toy", seed=0).values, [0, 0.75], atol=EXACT)
    assert np.isnan(cosine(delta, 0 * delta))


# --- the toy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", toy.KINDS)
def test_the_toy_on_its_nodes_is_the_layer_of_figure_2(kind):
    """The saliency after 30 steps, against `theory.flow` from the same start."""
    looks = dict(toy.train(kind, "on_nodes", 3, (0, 30)))
    config = _figure2.Config(iterations=30)
    layer = _figure2.train(config, kind, 3).layer
    tower = toy.Tower([toy.LayerConfig()], None, 2**31 + 3)
    start = tower.levels[0]
    W, z = start.W.detach().numpy(), start.z.detach().numpy()
    path = flow.descend(layer, W, z, np.full(30, toy.RATE))
    expected = saliency.along(layer, path)
    for step, look in looks.items():
        np.testing.assert_allclose(look.delta, expected[step], atol=EXACT)
        np.testing.assert_allclose(look.v, layer.context(path.W)[step], atol=EXACT)
        np.testing.assert_allclose(look.z, path.z[step], atol=EXACT)


def test_objectives_start_alike_and_part_by_what_they_train():
    looks = {o: dict(toy.train("random", o, 0, (0, 40))) for o in toy.OBJECTIVES[1:]}
    for look in looks.values():
        np.testing.assert_array_equal(look[0].delta, looks["joint"][0].delta)
    ends = [look[40].delta for look in looks.values()]
    assert not np.allclose(ends[0], ends[1], rtol=1e-3)
    assert not np.allclose(ends[1], ends[2], rtol=1e-3)


def test_a_fixed_signal_moves_the_weights_of_a_node_along_its_first_saliency():
    """With attention that has hardly moved, v - v(0) is E[g b], and b is near x."""
    looks = dict(toy.train("random", "per_node", 0, (0, 20)))
    assert cosine(looks[20].v - looks[0].v, looks[0].delta) > 0.99  # b = x only at z = 0


def test_looks_at_the_toy_start_at_0_and_end_at_the_end():
    steps = toy_steps(200)
    assert steps[0] == 0 and steps[-1] == 200 and len(set(steps)) == len(steps)


# --- the language model --------------------------------------------------------------------------


@pytest.fixture
def window():
    ids = torch.randint(12, (3, 8), generator=torch.Generator().manual_seed(0))
    return Window(ids[:, :-1], ids[:, 1:])


def test_saliency_of_a_model_is_minus_the_gradient_times_the_frequencies(window):
    """Sample by sample: the slope of the loss along a unit's bias, at each position."""
    model = LanguageModel(TINY, 1).eval()
    tokens = torch.arange(12)
    found = text.look(model, (window,), tokens, np.random.default_rng(0))
    lower = model.blocks[0].mlp.lower
    shift = torch.zeros(3, 7, 6, requires_grad=True)
    handle = lower.register_forward_hook(lambda _, args, out: out + shift)
    logits = model(window.inputs).flatten(0, 1)
    F.cross_entropy(logits, window.targets.flatten(), reduction="sum").backward()
    handle.remove()
    expected = np.zeros((12, 6))
    for row in range(3):
        for position in range(1, 7):
            before = torch.bincount(window.inputs[row, :position], minlength=12) / position
            expected -= np.outer(before.numpy(), shift.grad[row, position].numpy()) / 18
    np.testing.assert_allclose(found.delta, expected, atol=SINGLE * np.abs(expected).max())


def test_logits_of_keys_are_means_over_queries_that_see_them(window):
    model = LanguageModel(TINY, 1).eval()
    tokens = torch.unique(window.inputs)
    found = text.look(model, (window,), tokens, np.random.default_rng(0))
    seen = {}
    attention = model.blocks[0].attention
    handle = attention.register_forward_hook(lambda _, args, out: seen.update(x=args[0]))
    model(window.inputs)
    handle.remove()
    q, k = attention.query(seen["x"]).detach(), attention.key(seen["x"]).detach()
    logits, entropies = {int(t): [] for t in tokens}, []
    for row in range(3):
        for i in range(7):
            scores = (k[row, : i + 1] @ q[row, i] / 8**0.5).double()
            entropies.append(torch.special.entr(scores.softmax(0)).sum())
            for j in range(i + 1):
                logits[int(window.inputs[row, j])].append(float(scores[j] - scores.mean()))
    np.testing.assert_allclose(found.z, [np.mean(v) for v in logits.values()], atol=SINGLE)
    np.testing.assert_allclose(found.entropy, torch.stack(entropies).mean(), atol=SINGLE)


def test_weights_on_tokens_are_what_attention_passes_on_of_them():
    model = LanguageModel(TINY, 1).eval()
    block = model.blocks[0]
    vector = 8**0.5 * model.embedding.weight[5]
    passed = block.attention.output(block.attention.value(vector))
    expected = block.mlp.lower(passed) - block.mlp.lower.bias  # value and output biases start at 0
    found = text.weights(model, torch.tensor([5]))[0].numpy()
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=SINGLE)


def test_layerwise_training_leaves_embedding_and_readout_alone():
    config = EXPERIMENT.presets["ci"]
    assert setting(config, "layerwise_text").model.frozen == ("embedding", "readout")
    assert setting(config, "joint_text").model.frozen == ()


def test_looks_survive_a_kill_and_the_model_is_where_it_was(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("JOMA_SHARED", str(shared))
    chosen = setting(EXPERIMENT.presets["ci"], "joint_text")
    chosen = replace(chosen, model=replace(chosen.model, embed=16, hidden=16), early=(0,), skip=300)

    def look(model, step):
        return {"w": model.readout.weight.detach().numpy()}

    arguments = (chosen, "joint_text", 0)
    whole = dict(at_steps(*arguments, tmp_path / "a", (0, 2, 4), look))
    next(at_steps(*arguments, tmp_path / "b", (0, 2, 4), look))  # and no more
    dict(at_steps(*arguments, tmp_path / "b", (0, 2), look))
    parts = dict(at_steps(*arguments, tmp_path / "b", (0, 2, 4), look))
    for step, arrays in whole.items():
        np.testing.assert_array_equal(parts[step]["w"], arrays["w"])
    assert not np.array_equal(whole[0]["w"], whole[4]["w"])


# --- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "frequency", "shuffled", "verdict"),
    [
        (0.8, 0.1, 0.2, Verdict.HOLDS),
        (0.8, 0.75, 0.2, Verdict.NOT_DISTINGUISHABLE),
        (0.8, 0.1, 0.9, Verdict.NOT_DISTINGUISHABLE),
        (0.4, 0.0, 0.0, Verdict.FAILS),
    ],
)
def test_a_ranking_must_beat_both_controls(own, frequency, shuffled, verdict):
    values = {"": own, FREQUENCY: frequency, SHUFFLED: shuffled}
    tables = [
        records("smooth" + e, 0, metric=WEIGHTS, step=[9], value=[v]) for e, v in values.items()
    ]
    assert ranks(evidence(*tables), WEIGHTS, ("smooth",)).verdict == verdict


@pytest.mark.parametrize(
    ("entropy", "cosines", "drifts", "verdict"),
    [
        ([3, 2, 1, 1], [1, 0.95, 0.92, 0.1], [0, 0.2, 0.4, 2.0], Verdict.HOLDS),
        ([3, 2, 1, 1], [1, 0.95, 0.80, 0.1], [0, 0.2, 0.4, 2.0], Verdict.FAILS),
        ([3, 2, 1, 1], [1, 0.95, 0.92, 0.1], [0, 0.2, 0.6, 2.0], Verdict.FAILS),
        ([3, 3, 2.99, 3], [1, 1, 1, 1], [0, 0, 0, 0], Verdict.FAILS),
    ],
)
def test_assumption_1_is_judged_while_entropy_falls(entropy, cosines, drifts, verdict):
    values = {ENTROPY: entropy, COSINE: cosines, DRIFT: drifts}
    tables = [
        records("joint", 0, metric=m, step=range(4), value=np.array(v, dtype=float))
        for m, v in values.items()
    ]
    dealt = records("joint" + SHUFFLED, 0, metric=COSINE, step=range(4), value=np.zeros(4))
    assert stays(evidence(*tables, dealt), ("joint",)).verdict == verdict


def test_the_phase_ends_at_nine_tenths_of_the_fall():
    entropy = Curve(np.arange(5.0), np.array([3.0, 2.0, 1.15, 1.0, 2.0]))
    assert phase(entropy) == (2.0, 3.0, 2.0)

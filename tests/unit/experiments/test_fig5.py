"""Section 5: what its probes and rules say where the answer is known."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from joma.data.python_source import parse
from joma.experiments import _fig5_claims as claims, _runner, fig5
from joma.experiments._fig5_probes import AncestorProbe, LatentProbe
from joma.experiments._fig5_source import Source, climbs, paths_of
from joma.experiments._fig5_task import IGNORED, build, readings
from joma.experiments._fig5_trees import Trees, ancestors, asked, task
from joma.probes.base import AttentionCall, HiddenCall, Place
from joma.theory.hblt import cooccurrence

EXACT = 1e-6  # attention of float32 queries and keys
TREE = Trees(depth=2)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def lift_of(scores, ancestor, levels=(1, 2)):
    """Readings for attention with these scores, from one query to earlier keys."""
    size = scores.shape[-1]
    key = torch.eye(size).expand(len(scores), 1, -1, -1)
    call = AttentionCall(query=scores[:, None], key=key, scale=1.0, causal=True)
    probe = AncestorProbe(ancestor=ancestor, levels=levels)
    return [r.value for r in probe.readings(Place(layer=0), probe.observe(call))]


def test_equal_attention_is_no_preference(generator):
    ancestor = torch.randint(1, 3, (5, 6, 6), generator=generator).tril(-1)
    ancestor = ancestor.where(ancestor > 0, -1)
    assert lift_of(torch.zeros(5, 6, 6), ancestor) == pytest.approx([1, 1], abs=EXACT)


def test_preference_for_a_position_is_not_preference_for_an_ancestor():
    """Two sequences, each ancestor once at each position, attention by position alone."""
    scores = torch.zeros(2, 3, 3)
    scores[:, 2, 1] = 3.0
    ancestor = torch.full((2, 3, 3), -1)
    ancestor[0, 2, :2] = torch.tensor([1, 2])
    ancestor[1, 2, :2] = torch.tensor([2, 1])
    assert lift_of(scores, ancestor) == pytest.approx([1, 1], abs=EXACT)


def test_preference_is_relative_to_pairs_at_the_same_positions():
    scores = torch.zeros(2, 3, 3)
    ancestor = torch.full((2, 3, 3), -1)
    for row, order in enumerate([(1, 2), (2, 1)]):
        ancestor[row, 2, :2] = torch.tensor(order)
        scores[row, 2, order.index(1)] = math.log(3)  # 3/4 to the close one, 1/4 to the other
    assert lift_of(scores, ancestor) == pytest.approx([1.5, 0.5], abs=EXACT)


def test_an_ancestor_that_no_pair_has_is_undefined():
    ancestor = torch.ones(1, 2, 2, dtype=torch.int64).tril(-1)
    probe = AncestorProbe(ancestor=ancestor.where(ancestor > 0, -1), levels=(1, 2))
    one = torch.zeros(1, 1, 2, 4)
    sums = probe.observe(AttentionCall(query=one, key=one, scale=1.0, causal=True))
    missing = list(probe.readings(Place(layer=0), sums))[1]
    assert math.isnan(missing.value) and missing.status == "no such pair"


def test_a_unit_that_is_a_latent_is_found_on_samples_of_its_own(generator):
    latents = torch.rand(200, 3, generator=generator) < 0.5
    noise = torch.randn(200, 1, 20, generator=generator)
    units = torch.cat([latents[:, None].float(), noise], -1)
    probe = LatentProbe(latents=(latents,), pool=lambda u: u.amax(1), phi=torch.relu)
    sums = probe.observe(HiddenCall(inputs=units, preactivation=units))
    (found,) = probe.readings(Place(layer=0), sums)
    assert found.value == pytest.approx(1, abs=EXACT)


def test_the_token_asked_for_is_not_shown_and_is_the_answer_if_on(generator):
    leaves = torch.rand(50, 32, generator=generator) < 0.4
    ids, targets = asked(leaves, generator)
    for row, goal, on in zip(ids.tolist(), targets.tolist(), leaves, strict=True):
        (end,) = [i for i, word in enumerate(row) if word > 32]
        m = row[end] - 33
        assert m not in row[:end]
        assert sorted(row[:end]) == [i for i in on.nonzero().flatten().tolist() if i != m]
        assert goal[end] == (m if on[m] else 32)
        assert {*goal[:end], *goal[end + 1 :]} <= {IGNORED}


def test_closer_tokens_occur_together_more_often_by_theorem_5():
    chance = [cooccurrence(0.9, 0.0, levels=4, ancestor=h) for h in (1, 2, 3)]
    assert chance == sorted(chance, reverse=True)


@pytest.mark.parametrize("depth", [2, 3])
def test_levels_of_a_tree_count_the_tokens_below(depth):
    table = ancestors(32, Trees(depth=depth))
    counts = [(table[0] == level).sum().item() for level in range(depth + 2)]
    assert counts == [1, 1, 2, *([4] * (depth == 3)), 32 - 2**depth]


def test_only_the_question_looks_and_the_shuffled_tree_has_as_many_pairs():
    look = task(TREE, 0, 100, 4).look
    assert ((look.ancestor >= 0).any(2).sum(1) <= 1).all()
    assert torch.equal(look.ancestor >= 0, look.shuffled >= 0)
    assert not torch.equal(look.ancestor, look.shuffled)


def test_climbs_in_source_are_edges_up_to_the_common_ancestor():
    source = parse("total = price * 2\ncount = 1\n")
    node, parent, depth = (t.numpy() for t in (source.node, source.parent, source.depth))
    found = climbs(paths_of(node, parent, depth))
    for i in range(len(node)):
        for j in range(len(node)):
            assert found[i, j] == depth[node[i]] - source.common_depth(i, j)


def test_readings_cover_every_layer_and_level():
    tree = task(TREE, 0, 50, 4)
    model = build(tree, layers=2, embed=16, activation="relu", seed=0)
    seen = {(r.metric, r.layer) for r in readings(model, tree)}
    assert {("lift_1", 0), ("lift_3", 1), ("shuffled_lift_2", 0), ("latent_2", 1)} <= seen


def test_order_needs_every_level_and_a_gap():
    assert claims.is_ordered(np.array([1.2, 1.0, 0.9]))
    assert not claims.is_ordered(np.array([1.2, 0.9, 1.0]))
    assert not claims.is_ordered(np.array([1.02, 1.01, 1.0]))


def test_who_is_first_is_judged_only_where_levels_differ():
    lift = np.array([[1.0, 1.0], [1.0, 1.05], [1.3, 1.0], [1.3, 1.0]])
    assert claims.share_first(lift) == 1
    assert claims.share_first(lift[:, ::-1].copy()) == 0
    assert math.isnan(claims.share_first(lift[:2]))


def test_half_way_is_undefined_without_a_rise():
    steps = np.array([0.0, 10.0, 20.0])
    assert claims.half_time(steps, np.array([0.1, 0.3, 0.4])) == 10
    assert math.isnan(claims.half_time(steps, np.array([0.1, 0.3, 0.1])))


def test_a_short_run_has_records_claims_and_a_figure(tmp_path):
    """One representative of the whole: every kind of data, tiny."""
    preset = fig5.Config(
        steps=2,
        at=(0, 2),
        layers=(2,),
        source=Source(context=16),
        tree_samples=60,
        source_samples=20,
        embed=16,
    )
    short = dataclasses.replace(fig5.EXPERIMENT, presets={"ci": preset})
    _runner.run("fig5", short, seeds=1, out=tmp_path)
    seen = _runner.evidence("fig5", short, out=tmp_path)
    assert claims.arms(seen, "tree") == ["tree2_layers2", "tree3_layers2"]
    assert len(_runner.check("fig5", short, out=tmp_path)) == len(short.claims)
    assert all(len(panel.lines) >= 3 for panel in short.figure(seen))

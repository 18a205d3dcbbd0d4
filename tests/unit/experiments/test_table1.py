"""Table 1: the cheap form of its model is exact, and its rules decide as they say."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import torch

from joma.experiments import _runner, _table1_claims as claims, table1
from joma.experiments._table1_data import TABLE, FixedTask, NoisyCell, NoisyTask
from joma.experiments._table1_model import build, evaluate, train
from joma.experiments.base import Evidence, Verdict, records
from joma.records.schema import Kind

EXACT = 5e-6  # float32: sums over 30 keys in another order
SMALL = 32
UNTRAINED = (0.90, 1.0)  # five seeds of a prototype gave cell means of .936 to .994


def plain(model, sequences):
    """The whole model on all positions, without any of the savings, and its pooled units."""
    pooled = []

    def keep(module, inputs, output):
        pooled.append(output.relu().amax(1))

    hooks = [block.mlp.lower.register_forward_hook(keep) for block in model.blocks]
    with torch.no_grad():
        logits = model(sequences)[:, -1]
    for hook in hooks:
        hook.remove()
    return logits, pooled[:-1]


@pytest.mark.parametrize("cell", [TABLE[0], TABLE[-1]], ids=lambda cell: cell.arm)
def test_one_pad_for_all_and_one_position_at_the_end_change_nothing(cell):
    task = FixedTask.of(cell.hierarchy, 0)
    model = build(task.config.vocabulary, cell.classes, SMALL, 0)
    logits, pooled = plain(model, task.drawn.sequences)
    fast = evaluate(model, task.drawn.sequences, task.config.pad)
    torch.testing.assert_close(fast.logits, logits, atol=EXACT, rtol=0)
    for ours, whole in zip(fast.pooled, pooled, strict=True):
        torch.testing.assert_close(ours, whole, atol=EXACT, rtol=0)


def test_samples_of_any_length_are_evaluated_exactly_too():
    task = NoisyTask.of(NoisyCell(classes=5, rho=0.8, tops=5), 0)
    drawn = task.sample(50).sequences
    drawn[0] = task.config.tokens  # nothing but pads
    model = build(task.config.tokens + 1, 5, SMALL, 0)
    fast = evaluate(model, drawn, task.config.tokens)
    torch.testing.assert_close(fast.logits, plain(model, drawn)[0], atol=EXACT, rtol=0)


def test_shares_give_the_gradient_of_the_rows_they_stand_for():
    task = FixedTask.of(TABLE[0].hierarchy, 0)
    model = build(task.config.vocabulary, 20, SMALL, 0)
    batch = task.batch()
    counts = (batch.shares * 128).round().long()
    rows = torch.arange(20).repeat_interleave(counts)
    assert len(rows) == 128
    grads = []
    for seqs, labels, shares in (
        batch,
        (batch.sequences[rows], rows, torch.full((128,), 1 / 128)),
    ):
        each = torch.nn.functional.cross_entropy(
            evaluate(model, seqs, task.config.pad).logits, labels, reduction="none"
        )
        grads.append(torch.autograd.grad(shares @ each, model.embedding.weight)[0])
    torch.testing.assert_close(*grads, atol=EXACT, rtol=0)


def test_training_stops_where_it_is_asked_to_and_learns():
    task = FixedTask.of(TABLE[0].hierarchy, 0)
    model = build(task.config.vocabulary, 20, SMALL, 0)
    seen = list(
        train(model, task.batch, task.config.pad, iterations=30, rate=1e-2, decay=0.0, at=(0, 30))
    )
    assert [step for step, _ in seen] == [0, 30]
    assert seen[1][1] < seen[0][1] / 2


def test_building_a_model_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    build(101, 20, SMALL, 3)
    assert torch.equal(before, torch.get_rng_state())


def test_sampled_inputs_are_many_and_their_latents_vary():
    task = NoisyTask.of(NoisyCell(classes=20, rho=0.9), 0)
    drawn = task.sample(4000)
    assert len({tuple(row) for row in drawn.sequences.tolist()}) >= 2000
    assert [y.shape[1] for y in drawn.latents] == [40, 20]
    for latents in drawn.latents:
        assert 0.05 < latents.float().mean() < 0.5
    assert len(drawn.labels.unique()) == 20


def test_noise_scores_nothing_when_scored_on_other_samples():
    drawn = NoisyTask.of(NoisyCell(classes=20, rho=0.9), 0).sample(4000)
    generator = torch.Generator().manual_seed(0)
    units = torch.randn(2, 4000, 400, generator=generator)
    # A mean over 20 latents or more, each with deviation 1 / sqrt(2000): five deviations.
    assert max(map(abs, table1._held_out(tuple(units), drawn))) < 0.025


def evidence(trained, before, noise, cells=TABLE):
    """Records of cells with these scores at both levels."""
    tables = []
    for cell in cells:
        for metric in (claims.S0, claims.S1):
            rows = {"metric": metric, "step": [0, 60]}
            tables.append(records(cell.arm, 0, value=[before, trained], **rows))
            for control, value in (("noise", noise), ("untrained", before)):
                arm, row = f"{cell.arm}_{control}", {"step": [0], "value": [value]}
                tables.append(records(arm, 0, kind=Kind.CONTROL, metric=metric, **row))
    return Evidence(pa.concat_tables([_runner._named("table1", t) for t in tables]))


@pytest.mark.parametrize(
    ("scores", "low", "high"),
    [
        ((0.95, 0.95, 0.6), Verdict.NOT_DISTINGUISHABLE, Verdict.FAILS),
        ((0.95, 0.70, 0.6), Verdict.HOLDS, Verdict.HOLDS),
        ((0.70, 0.60, 0.8), Verdict.FAILS, Verdict.NOT_DISTINGUISHABLE),
        ((0.70, 0.69, 0.6), Verdict.FAILS, Verdict.FAILS),
    ],
)
def test_rules_decide_as_they_say(scores, low, high):
    seen = evidence(*scores)
    assert claims.lowest_layer(seen).verdict == low
    assert claims.next_layer(seen).verdict == high


def test_print_is_matched_by_training_and_not_without_it():
    cell = [TABLE[0]]
    assert claims.printed(evidence(0.80, 0.60, 0.6, cell)).verdict == Verdict.HOLDS
    assert claims.printed(evidence(0.80, 0.75, 0.6, cell)).verdict == Verdict.NOT_DISTINGUISHABLE
    assert claims.printed(evidence(0.60, 0.50, 0.6, cell)).verdict == Verdict.FAILS


def test_a_short_run_has_records_claims_and_a_figure(tmp_path):
    """One representative of the whole: one cell, few iterations, every arm."""
    preset = table1.Config(
        embed=64,
        iterations=20,
        at=(0, 10, 20),
        sampled=dataclasses.replace(table1.CI_SAMPLED, iterations=2, embed=SMALL, samples=400),
        cells=TABLE[:1],
        trained_seeds=1,
        untrained_embed=64,
    )
    short = dataclasses.replace(table1.EXPERIMENT, presets={"ci": preset})
    _runner.run("table1", short, seeds=2, out=tmp_path)
    seen = _runner.evidence("table1", short, out=tmp_path)
    assert [len(c.steps) for c in seen.curves(claims.S1, arm=TABLE[0].arm)] == [3]
    assert len(seen.curves(claims.S1, arm=f"{TABLE[0].arm}_untrained")) == 2
    for claim, found in _runner.check("table1", short, out=tmp_path):
        assert all(np.isfinite(v) for v in found.numbers.values()), claim.name
    for panel in table1.EXPERIMENT.figure(seen):
        assert panel.dots or panel.lines


def test_an_untrained_model_already_has_the_lowest_level():
    """Bar C0, on one seed: row s = 0 of Table 1 is no evidence of learning."""
    found = []
    for cell in TABLE[:4]:
        task = FixedTask.of(cell.hierarchy, 0)
        model = build(task.config.vocabulary, cell.classes, 1024, 0)
        found.append(table1._scores(model, task)[0])
    assert UNTRAINED[0] < min(found) <= max(found) <= UNTRAINED[1]


@pytest.mark.slow
def test_bars_c0_and_c1_hold_in_the_ci_preset(tmp_path):
    """12 cells: s = 1 rises in all of them, by .04 on average; an untrained s = 0 is high."""
    _runner.run("table1", table1.EXPERIMENT, out=tmp_path)
    found = {c.name: f for c, f in _runner.check("table1", table1.EXPERIMENT, out=tmp_path)}
    assert found["next_layer"].numbers["cells that gain"] == 12
    assert found["next_layer"].numbers["gain"] >= claims.RISE
    lowest = found["lowest_layer"].numbers
    assert lowest["lowest cell"] >= claims.S0_LEAST
    assert lowest["untrained, width 1024, lowest cell"] > UNTRAINED[0]

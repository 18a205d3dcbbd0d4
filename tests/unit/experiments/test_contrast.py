"""What counts as a bounce, how arms of `contrast` differ, and that its rules decide as they say."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from joma.experiments import _contrast_claims as claims, contrast
from joma.experiments._contrast_claims import ARMS, HIGH, HYPOTHESES, LOW, dip, hypothesis, named
from joma.experiments._language import ENTROPY, Setting
from joma.experiments.base import Curve, Evidence, Verdict, records
from joma.models.language import LanguageConfig, LanguageModel

PAPER = contrast.EXPERIMENT.presets["paper"]
TINY = contrast.EXPERIMENT.presets["ci"]
STEPS = np.arange(0.0, 4001.0, 100.0)
FALLS = 2.5 - STEPS / 4000
BOUNCES = np.where(STEPS < 1000, 2.5 - STEPS / 1000, 1.5 + (STEPS - 1000) / 6000)


def made(shapes, loss=4.0):
    """Evidence of two seeds in which every arm falls, but for those in `shapes`."""
    tables = []
    for rate in (LOW, HIGH):
        for arm in ARMS:
            values = shapes.get(arm, FALLS)
            for seed in range(2):
                row = {"arm": f"contrast/{named(arm, rate)}", "seed": seed}
                tables += [
                    records(**row, metric=ENTROPY, step=STEPS, value=values, layer=[0] * 41),
                    records(**row, metric="loss", step=STEPS, value=np.full(41, loss)),
                ]
    return Evidence(pa.concat_tables(tables))


def test_a_fall_does_not_bounce():
    assert not dip(Curve(STEPS, FALLS)).bounces


def test_a_dip_that_comes_back_bounces_and_is_measured_after_smoothing():
    found = dip(Curve(STEPS, BOUNCES))
    assert found.bounces and found.step == 1100  # the kink is rounded
    assert 1.5 < found.low < 1.54
    assert found.bounce == pytest.approx(BOUNCES[STEPS >= 3000].mean() - found.low)


def test_a_single_low_evaluation_is_no_dip():
    values = np.full(len(STEPS), 2.5)
    values[20] = 2.0
    assert not dip(Curve(STEPS, values)).bounces


def test_a_run_that_leaves_the_numbers_does_not_bounce():
    values = BOUNCES.copy()
    values[-1] = np.nan
    found = dip(Curve(STEPS, values))
    assert np.isnan(found.depth) and not found.bounces


@pytest.mark.parametrize(
    ("shapes", "verdict"),
    [
        ({}, Verdict.FAILS),
        ({"relu": BOUNCES}, Verdict.HOLDS),
        ({"relu": BOUNCES, "no_mlp": BOUNCES}, Verdict.NOT_DISTINGUISHABLE),
    ],
)
def test_a_bounce_without_mlp_takes_the_evidence_away(shapes, verdict):
    evidence = made(shapes)
    assert claims.nonlinear_bounces(evidence).verdict is verdict
    assert claims.joint_dynamics(evidence).verdict is verdict


def test_a_linear_mlp_decides_about_linearity_only():
    evidence = made({"relu": BOUNCES, "identity": BOUNCES})
    assert claims.nonlinear_bounces(evidence).verdict is Verdict.NOT_DISTINGUISHABLE
    assert claims.joint_dynamics(evidence).verdict is Verdict.HOLDS


def test_depth_and_time_are_compared_with_no_mlp_and_with_a_frozen_one():
    evidence = made({"relu": BOUNCES - 0.5})
    assert claims.deeper(evidence).verdict is claims.earlier(evidence).verdict is Verdict.HOLDS
    evidence = made({"relu": BOUNCES - 0.5, "frozen_mlp": BOUNCES - 0.5})
    assert claims.deeper(evidence).verdict is Verdict.NOT_DISTINGUISHABLE
    evidence = made({"relu": BOUNCES - 0.5, "no_mlp": BOUNCES})
    assert claims.earlier(evidence).verdict is Verdict.FAILS  # at the same step


def test_an_arm_without_a_bounce_shows_a_need():
    found = claims.needed(made({arm: BOUNCES for arm in ARMS if arm != "rms_norm"}))
    assert found.verdict is Verdict.HOLDS
    assert "rms_norm_lr1e-4" in found.note
    assert claims.needed(made(dict.fromkeys(ARMS, BOUNCES))).verdict is Verdict.FAILS


@pytest.mark.parametrize("rate", [LOW, HIGH])
def test_every_arm_differs_from_relu_in_one_thing(rate):
    plain = contrast.setting(PAPER, named("relu", rate))
    for arm in ARMS[1:]:
        other = contrast.setting(PAPER, named(arm, rate))
        assert (other.steps, other.early, other.every) == (plain.steps, plain.early, plain.every)
        fields = vars(other.model).items() - vars(plain.model).items()
        assert len(fields) == (0 if arm == "sgd" else 1), arm
        assert (other.optimiser == "sgd") == (arm == "sgd")


def test_the_full_run_is_as_long_and_as_densely_evaluated_as_asked():
    slow, fast = (contrast.setting(PAPER, named("relu", rate)) for rate in (LOW, HIGH))
    assert slow.steps >= 5000 and fast.steps >= 3000
    assert (slow.learning_rate, fast.learning_rate) == (1e-4, 1e-3)
    assert set(range(0, 501, 25)) <= set(fast.early)
    assert contrast.EXPERIMENT.count("paper") == 3


def test_arms_of_one_seed_start_from_the_same_attention():
    first = LanguageModel(contrast.setting(TINY, "relu_lr1e-4").model, 1)
    for arm in ARMS[1:]:
        other = LanguageModel(contrast.setting(TINY, named(arm, LOW)).model, 1)
        assert torch.equal(first.embedding.weight, other.embedding.weight)
        attention = [m.blocks[0].attention.state_dict() for m in (first, other)]
        assert all(torch.equal(attention[0][k], attention[1][k]) for k in attention[0])


@pytest.mark.parametrize(("met", "verdict"), [(0.0, Verdict.HOLDS), (1.0, Verdict.FAILS)])
def test_one_arm_that_meets_every_hypothesis_would_be_said(met, verdict):
    tables = [
        records(
            f"contrast/{named(arm, rate)}",
            0,
            metric=hypothesis(what),
            step=[0],
            value=[met if arm == "sgd" else 1.0 if what == "trained MLP" else 0.0],
        )
        for arm in ARMS
        for rate in (LOW, HIGH)
        for what in HYPOTHESES
    ]
    assert claims.hypotheses(Evidence(pa.concat_tables(tables))).verdict is verdict


def test_hypotheses_are_read_off_the_setting():
    chosen = contrast.setting(TINY, "frozen_embeddings_lr1e-4")
    met = {what for what, yes in contrast.met_by(chosen, 0).items() if yes}
    assert met == {"fixed embeddings", "trained MLP"}
    best = Setting(
        model=LanguageConfig(vocab=8, embed=8, frozen=("embedding",), norm="none"),
        learning_rate=1.0,
        optimiser="sgd",
        steps=1,
    )
    assert sum(contrast.met_by(best, 0).values()) == 4


def test_one_arm_resumes_to_the_same_records(shared: Path, tmp_path, monkeypatch):
    monkeypatch.setenv("JOMA_SHARED", str(shared))
    config = contrast.Config(
        model=LanguageConfig(vocab=200, embed=16, hidden=16),
        low_steps=4,
        high_steps=4,
        dense_until=2,
        dense=1,
        every=2,
        skip=200,
    )
    first = contrast.train_arm(config, "sgd_lr1e-3", 0, tmp_path)
    again = contrast.train_arm(config, "sgd_lr1e-3", 0, tmp_path)
    assert str(first.to_pylist()) == str(again.to_pylist())
    assert set(first["step"].to_pylist()) == {0.0, 1.0, 2.0, 4.0}

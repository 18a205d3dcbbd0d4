"""The scoring of `joma bench diagnosis`, on runs made by hand and on those that were kept."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joma.analysis.calibration import CALIBRATION
from joma.analysis.diagnosis import diagnosed, standing_after
from joma.analysis.series import series
from joma.bench import _diagnosis_read as read, diagnosis
from joma.bench._diagnosis_runs import ONE, ONE_FILE, SETUPS, train
from joma.bench._diagnosis_score import (
    Detector,
    Run,
    alarm,
    calibrated,
    failed,
    impaired,
    score,
    threshold,
)
from joma.data import text
from joma.records import arrow

STEPS = np.array([0.0, 10.0, 20.0, 40.0])


def run(name, rate, loss, entropy=(0.0, 0.0, 0.0, 0.0), configuration="toy"):
    loss = np.array(loss)
    signals = {"entropy": np.array(entropy)[:, None], "loss-only": loss[:, None]}
    return Run(name, configuration, True, rate, STEPS, loss, 4.0, signals)


GOOD = run("good", 1e-3, [7.0, 5.0, 4.0, 3.0], [0.0, 0.1, 0.2, 0.1])
SLOW = run("slow", 1e-4, [7.0, 6.9, 6.8, 6.7])
BAD = run("bad", 1e-2, [7.0, 4.5, 4.0, 5.0], [0.0, 0.9, 0.9, 0.9])
RUNS = [SLOW, GOOD, BAD]


def test_a_run_fails_by_its_final_loss_against_smaller_learning_rates():
    flat = {
        name: [7.0, value, value, value] for name, value in (("a", 3.0), ("b", 3.4), ("c", 3.6))
    }
    runs = [run(name, rate, flat[name]) for name, rate in (("a", 1e-3), ("b", 3e-3), ("c", 1e-2))]
    assert failed(runs) == {"c"}  # 3.5 is half of the way from 3 to the unigram loss of 4


def test_a_run_is_impaired_three_per_cent_above_its_best_rival():
    runs = [
        run(str(x), rate, [7.0, x, x, x]) for x, rate in ((3.0, 1e-3), (3.08, 3e-3), (3.1, 1e-2))
    ]
    assert impaired(runs) == {"3.1"}


def test_a_slow_run_has_not_failed():
    assert failed(RUNS) == {"bad"}


def test_a_run_that_ends_in_nan_has_failed():
    assert failed([GOOD, run("nan", 1e-2, [7.0, 6.0, math.nan, math.nan])]) == {"nan"}


def test_an_alarm_is_the_first_step_above_the_threshold_while_it_listens():
    level = Detector("entropy", "level", 0.0, math.inf, 0.5)
    assert alarm(BAD, level) == 10
    assert alarm(BAD, level._replace(first=15.0)) == 20
    assert math.isnan(alarm(BAD, level._replace(last=5.0)))
    assert math.isnan(alarm(GOOD, level))


def test_the_change_over_a_doubling_looks_back_to_half_the_step():
    doubling = Detector("loss-only", "change over the last doubling of steps", 0.0, math.inf, -0.6)
    assert alarm(BAD, doubling._replace(first=10.0)) == 20  # 4.5 at 10 to 4.0 at 20


def test_a_threshold_is_the_lowest_with_so_many_false_alarms():
    level = Detector("entropy", "level", 0.0, math.inf, 0.0)
    assert threshold(RUNS, {"bad"}, level).threshold == pytest.approx(0.2)
    assert threshold(RUNS, {"bad"}, level, 1).threshold == 0.0


def test_calibration_prefers_what_finds_the_failure_earliest():
    found = calibrated(RUNS, {"bad"}, "entropy", (0.0, 20.0))
    assert alarm(BAD, found) == 10
    assert all(math.isnan(alarm(r, found)) for r in (GOOD, SLOW))


def test_the_lead_is_in_steps_of_the_loss_alarm_at_equal_false_alarms():
    loss = Detector("loss-only", "rise above its lowest", 0.0, math.inf, 99.0)
    found = score(RUNS, {"bad"}, {"good": math.nan, "slow": math.nan, "bad": 10.0}, loss)
    assert (found.found, found.failed, found.false_alarms) == (1, 1, 0)
    assert found.lead == 30  # the loss rises above its lowest at step 40


def test_calibration_and_held_out_runs_share_no_configuration():
    plain = [replace(setup, name="", held_out=False, rates=()) for setup in SETUPS]
    assert len(set(plain)) == len(SETUPS)
    assert sum(len(setup.rates) for setup in SETUPS) >= 24
    assert {setup.held_out for setup in SETUPS} == {True, False}


def test_the_kept_records_are_those_of_every_run():
    runs, observed = read.own_runs()
    assert {run.name for run in runs} == {name for setup in SETUPS for name, _ in setup.runs}
    assert set(observed) == {run.name for run in runs}
    assert all(run.steps[-1] == 1000 and run.steps[1] <= 10 for run in runs)


def test_the_rule_raises_no_false_alarm_on_the_runs_it_was_calibrated_on():
    runs, observed = read.own_runs()
    bad = impaired(runs)
    half = [run for run in runs if not run.held_out]
    alarms = read.rule_alarms((observed[run.name] for run in half), CALIBRATION)
    alarmed = {name for name, step in alarms.items() if not math.isnan(step)}
    assert alarmed <= bad
    assert len(alarmed) == 11  # of 13, as printed by joma bench diagnosis


def test_the_kept_scores_on_the_authors_runs_are_what_their_curves_give(shared):
    assert diagnosis.AUTHORS.is_file(), shared
    runs, _ = read.authors_runs()
    assert (len(runs), len(failed(runs))) == (141, 24)
    rule = next(line for line in diagnosis.kept_lines() if line.detector == "combined")
    _, observed = read.authors_runs()
    alarms = read.rule_alarms(observed.values(), CALIBRATION)
    assert sum(not math.isnan(alarms[name]) for name in failed(runs)) == rule.score.found


def test_the_unigram_loss_of_the_authors_text_is_the_one_written_down(shared):
    corpus = text.read(shared / "data" / "wikitext-2")
    counts = np.bincount(corpus.train.numpy(), minlength=len(corpus.vocabulary))
    loss = -np.log(counts / counts.sum())[corpus.valid.numpy()].mean()
    assert loss == pytest.approx(read.AUTHORS_UNIGRAM, abs=5e-4)  # three digits are kept


def test_one_layer_at_1e_2_is_flagged_before_step_50_and_at_1e_3_it_is_not():
    _, observed = read.own_runs(read.RESULTS / ONE_FILE, (ONE,))
    steps = read.rule_alarms(observed.values(), CALIBRATION)
    assert steps["1-post-200/lr0.01"] < 50
    assert math.isnan(steps["1-post-200/lr0.001"])


def test_one_layer_trained_anew_at_1e_2_is_flagged_and_the_layer_is_named(shared):
    corpus = text.read(shared / "data" / "wikitext-2", size=ONE.vocabulary)
    records = list(train(ONE, "fresh", 1e-2, corpus, steps=20))
    (one,) = series(arrow.table(records))
    (found,) = diagnosed(one.run, standing_after(one.seen), one.facts, one.layers)
    assert found.verdict.alarm
    assert found.layer == 0
    assert found.since < 50


def test_the_documentation_has_a_row_for_every_detector():
    page = diagnosis.document()
    for name in diagnosis.ORDER:
        assert f"| {name} |" in page

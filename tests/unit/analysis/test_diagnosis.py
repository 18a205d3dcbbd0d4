"""The rule on curves made by hand, so that each word has its own test."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joma.analysis.calibration import CALIBRATION
from joma.analysis.ceiling import causal_ceiling
from joma.analysis.diagnosis import Facts, Verdict, diagnose, diagnosed, facts_of, standing_after
from joma.analysis.standing import Seen, advanced
from joma.records import arrow, provenance
from joma.records.store import Store

LIMITS = replace(CALIBRATION, share=0.3, logit=50.0, gain=0.1, grace=2.0, untrained=0.8)
"""Round numbers, so that these tests do not move when the calibration does."""
STEPS = np.arange(0.0, 101.0, 10.0)
FLAT = np.full(len(STEPS), 2.5)
NARROW = np.where(STEPS >= 20, 0.05, 2.5)
LEARNS = 7.0 / (1 + STEPS / 50)
STALLS = np.where(STEPS >= 20, 5.0, 7.0 - STEPS / 10)


def seen(entropy, loss, logit=None):
    entropy = np.atleast_2d(entropy).T
    logit = np.ones_like(entropy) if logit is None else np.atleast_2d(logit).T
    return [
        Seen(step=s, entropy=entropy[i], logit=logit[i], loss=float(loss[i]))
        for i, s in enumerate(STEPS)
    ]


def say(entropy, loss, logit=None, facts=None):
    after = standing_after(seen(entropy, loss, logit), LIMITS)
    return diagnosed("toy", after, facts, limits=LIMITS)


def test_attention_that_keeps_its_width_is_no_warning():
    (found,) = say(FLAT, LEARNS)
    assert found.verdict == "no warning"
    assert "100% of its entropy" in found.message


def test_narrow_attention_under_a_loss_that_stalls_is_collapsing():
    (found,) = say(NARROW, STALLS)
    assert (found.verdict, found.layer, found.since) == ("attention collapsing", 0, 20)
    for words in (
        "0.05 nats",
        "2% of step 0",
        "gained 0.0%",
        "lower peak learning rate",
        "QK-norm",
    ):
        assert words in found.message


def test_narrow_attention_under_a_loss_that_falls_on_is_sparse_but_functional():
    (found,) = say(NARROW, LEARNS)
    assert found.verdict == "sparse but functional"


def test_the_layer_that_collapses_is_named_and_the_others_are_not():
    (found,) = say([FLAT, FLAT, NARROW], STALLS)
    assert found.layer == 2


def test_the_loss_has_its_time_before_an_alarm():
    early = standing_after(seen(NARROW, STALLS)[:4], LIMITS)  # narrow since 20, step 30
    (found,) = diagnosed("toy", early, limits=LIMITS)
    assert found.verdict == "cannot say"
    assert "by step 40" in found.message


def test_a_loss_that_falls_too_late_is_said_to_have_come_late():
    (found,) = say(NARROW, np.where(STEPS > 40, 4.0, STALLS))
    assert found.verdict == "attention collapsing"
    assert "had not gained 10% by step 40" in found.message
    assert "by now it has gained 20.0%" in found.message


def test_large_logits_under_a_loss_that_stalls_are_exploding():
    (found,) = say(FLAT, STALLS, np.where(STEPS >= 30, 80.0, 1.0))
    assert (found.verdict, found.since) == ("logits exploding", 30)
    (found,) = say(FLAT, LEARNS, np.where(STEPS >= 30, 80.0, 1.0))
    assert found.verdict == "no warning"


def test_logits_that_overflow_explode_at_once():
    (found,) = say(FLAT, LEARNS, np.where(STEPS >= 100, math.inf, 1.0))
    assert found.verdict is Verdict.EXPLODING


def test_a_loss_that_is_not_a_number_does_not_keep_pace():
    (found,) = say(NARROW, np.where(STEPS >= 20, math.nan, 7.0))
    assert found.verdict is Verdict.COLLAPSING
    assert "is not a number" in found.message


def test_a_loss_that_falls_too_late_does_not_end_the_alarm():
    late = np.where(STEPS >= 80, 3.0, STALLS)  # due at 40
    (found,) = say(NARROW, late)
    assert found.verdict is Verdict.COLLAPSING
    assert "gained 40.0% since then" in found.message


def test_a_model_that_learned_on_in_time_is_not_alarmed_when_it_converges():
    (found,) = say(NARROW, np.maximum(LEARNS, 4.0))
    assert found.verdict is Verdict.SPARSE


def test_attention_that_widens_again_ends_the_alarm():
    (found,) = say(np.where(STEPS == 20, 0.05, 2.5), STALLS)
    assert found.verdict is Verdict.NO_WARNING


def test_a_missing_reading_neither_ends_a_stretch_nor_begins_one():
    (found,) = say(np.where(STEPS == 50, math.nan, NARROW), STALLS)
    assert (found.verdict, found.since) == (Verdict.COLLAPSING, 20)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (Facts(qk_norm=True), "QK-norm bounds"),
        (Facts(softcap=True), "soft cap"),
        (Facts(sinks=True), "Learned sinks"),
        (Facts(fine_tuned=True), "from a checkpoint"),
        (Facts(changed="the probe batch"), "the probe batch changed"),
        (Facts(sequence_length=200), f"ceiling {causal_ceiling(200):.2f}"),
        (Facts(vocabulary=50_000), "ln 50000"),
    ],
)
def test_a_run_the_rule_is_not_made_for_gets_a_reason_and_no_alarm(facts, words):
    (found,) = say(NARROW, STALLS, facts=facts)
    assert found.verdict == "cannot say"
    assert words in found.message


def test_a_run_without_step_0_cannot_be_judged():
    late = standing_after(seen(NARROW, STALLS)[1:], LIMITS)
    (found,) = diagnosed("toy", late, limits=LIMITS)
    assert "begin at step 10" in found.message


def test_a_run_without_a_loss_cannot_be_judged():
    (found,) = say(NARROW, np.full(len(STEPS), math.nan))
    assert found.verdict is Verdict.CANNOT_SAY


@pytest.mark.parametrize(
    "facts", [Facts(warmup=200), Facts(sequence_length=30)], ids=["warm-up", "length"]
)
def test_in_warm_up_and_outside_the_calibration_there_are_alarms_but_no_all_clear(facts):
    assert say(NARROW, STALLS, facts=facts)[0].verdict is Verdict.COLLAPSING
    for curve in (FLAT, NARROW):
        assert say(curve, LEARNS, facts=facts)[0].verdict is Verdict.CANNOT_SAY


def test_more_layers_than_calibrated_get_no_all_clear():
    (found,) = say([FLAT] * (LIMITS.layers[1] + 1), LEARNS)
    assert found.verdict is Verdict.CANNOT_SAY
    assert "layers" in found.message


def test_the_word_healthy_is_never_said():
    said = [d for e in (FLAT, NARROW) for loss in (LEARNS, STALLS) for d in say(e, loss)]
    assert not any("healthy" in d.message + d.verdict for d in said)


def table(entropy=NARROW, loss=STALLS, **more):
    import pyarrow as pa

    n = len(STEPS)
    rows = [
        arrow.from_columns(
            run="toy",
            metric=metric,
            step=STEPS,
            value=value,
            layer=[0] * n if metric != "loss" else None,
            context="probe",
            **more,
        )
        for metric, value in (
            ("attention_entropy_sink_free", entropy),
            ("max_attention_logit", np.ones(n)),
            ("loss", loss),
        )
    ]
    return pa.concat_tables(rows)


def test_a_table_and_a_monitor_say_the_same():
    (from_table,) = diagnose(table(), limits=LIMITS)
    now = None
    for one in seen(NARROW, STALLS):
        now = advanced(now, one, LIMITS)
    assert (from_table,) == diagnosed("toy", now, limits=LIMITS)


def test_predictions_and_controls_are_not_diagnosed():
    assert diagnose(table(kind="predicted"), limits=LIMITS) == ()


def test_a_sequence_length_that_changes_is_seen_in_the_table():
    length = [35] * 5 + [256] * (len(STEPS) - 5)
    (found,) = diagnose(table(sequence_length=length), limits=LIMITS)
    assert "the sequence length (35, 256) changed" in found.message


def test_entropy_with_sinks_is_judged_only_where_there_is_no_other():
    import pyarrow as pa

    plain = arrow.from_columns(
        run="toy", metric="attention_entropy", step=STEPS, value=FLAT, layer=[0] * len(STEPS)
    )
    loss = arrow.from_columns(run="toy", metric="loss", step=STEPS, value=STALLS)
    assert diagnose(pa.concat_tables([table(), plain]), limits=LIMITS)[0].verdict.alarm
    (found,) = diagnose(pa.concat_tables([plain, loss]), limits=LIMITS)
    assert found.verdict is Verdict.NO_WARNING


def test_facts_travel_in_the_provenance_of_a_store(tmp_path):
    noted = {"joma_facts": {"qk_norm": True, "warmup": 100, "unknown": 1}}
    store = Store(tmp_path, provenance.collect(config=noted))
    store.append(table())
    assert facts_of(store) == {"toy": Facts(qk_norm=True, warmup=100)}
    (found,) = diagnose(store.read(), facts_of(store))
    assert "QK-norm" in found.message

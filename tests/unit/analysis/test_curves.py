import math

import numpy as np
import pytest

from joma._core.errors import JomaError
from joma.analysis.ceiling import causal_ceiling
from joma.analysis.curves import NON_FINITE, curves, shape
from joma.metrics import logits
from joma.records import arrow

EXACT = 1e-12  # a few float64 operations


def rows(metric="attention_entropy", **more):
    columns = {"run": "toy", "metric": metric, "step": [0, 0, 5, 5], "layer": [0, 0, 0, 0]}
    return arrow.from_columns(
        **columns | {"head": [0, 1, 0, 1], "value": [2.0, 1.0, 0.5, 1.5]} | more
    )


def test_a_layer_has_the_mean_of_its_heads():
    (curve,) = curves(rows())
    assert (curve.run, curve.metric, curve.layer) == ("toy", "attention_entropy", 0)
    assert curve.steps.tolist() == [0, 5]
    assert curve.values.tolist() == [1.5, 1.0]


def test_a_layer_has_the_largest_logit_of_its_heads():
    (curve,) = curves(rows("max_attention_logit"))
    assert curve.values.tolist() == [2.0, 1.5]


def test_a_logit_that_overflowed_is_infinite():
    values, status = [2.0, math.nan, 0.5, 1.5], ["ok", NON_FINITE, "ok", "ok"]
    (curve,) = curves(rows("max_attention_logit", value=values, status=status))
    assert curve.values.tolist() == [math.inf, 1.5]


def test_the_reason_of_an_overflow_is_the_one_the_metric_writes():
    assert NON_FINITE == logits.NON_FINITE


def test_a_head_without_a_value_is_left_out_and_a_step_without_any_is_nan():
    values, status = [2.0, math.nan, math.nan, math.nan], ["ok", "hidden", "hidden", "hidden"]
    (curve,) = curves(rows(value=values, status=status))
    assert curve.values[0] == 2.0
    assert math.isnan(curve.values[1])


def test_runs_layers_contexts_and_lengths_are_curves_of_their_own():
    for more in (
        {"run": ["a", "b", "a", "b"]},
        {"layer": [0, 1, 0, 1]},
        {"context": ["probe", "train", "probe", "train"]},
        {"context": ["probe", None, "probe", None]},
        {"sequence_length": [35, 256, 35, 256]},
    ):
        assert [c.values.tolist() for c in curves(rows(**more))] == [[2.0, 0.5], [1.0, 1.5]]


def test_metrics_are_picked_and_an_empty_table_has_no_curves():
    assert curves(rows(), ["loss"]) == ()
    assert len(curves(rows(), ["attention_entropy", "loss"])) == 1


def test_a_table_that_holds_no_records_is_refused():
    with pytest.raises(JomaError, match="has the column 'bound'"):
        curves(rows().drop_columns(["bound"]))


def test_a_dip_is_described_by_its_step_depth_and_bounce():
    found = shape(np.array([0.0, 1.0, 2.0, 3.0]), np.array([2.5, 1.5, math.nan, 2.25]))
    assert (found.start, found.dip, found.dip_step, found.end) == (2.5, 1.5, 1.0, 2.25)
    assert found.bounce == pytest.approx(0.75, rel=EXACT)


def test_a_curve_that_only_rises_has_no_bounce():
    found = shape(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    assert found.depth == 0
    assert math.isnan(found.bounce)
    assert all(math.isnan(x) for x in shape(np.array([0.0]), np.array([math.nan])))


@pytest.mark.parametrize("length", [1, 2, 35])
def test_the_ceiling_is_the_mean_of_uniform_rows(length):
    rows = [math.log(t + 1) for t in range(length)]
    assert causal_ceiling(length) == pytest.approx(sum(rows) / length, rel=EXACT, abs=EXACT)


def test_a_sequence_without_tokens_has_no_ceiling():
    with pytest.raises(ValueError, match="length = 0"):
        causal_ceiling(0)


def test_the_authors_one_layer_model_dips_and_bounces(shared):
    """Spec: at 1e-4 the entropy of one layer falls to 1.55 by 2,000 minibatches, ends at 2.21."""
    from joma.bench._diagnosis_read import authors_runs

    _, observed = authors_runs(shared / "reference" / "authors_wikitext2_curves.csv")
    ends = []
    for run, one in observed.items():
        if run.startswith("1 layers/lr0.0001/"):
            steps = np.array([s.step for s in one.seen])
            found = shape(steps, np.array([s.entropy[0] for s in one.seen]))
            assert found.dip_step in (2000, 3000)
            assert found.bounce > 0.5
            ends.append((found.dip, found.end))
    assert np.mean(ends, axis=0) == pytest.approx([1.55, 2.21], abs=0.03)  # as printed, two digits

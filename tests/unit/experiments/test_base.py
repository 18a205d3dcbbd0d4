"""Evidence, verdicts and findings."""

import pyarrow as pa
import pytest

from joma._core.errors import JomaError
from joma.experiments.base import Evidence, Finding, PaperRef, Verdict
from joma.records import arrow
from joma.records.schema import Kind


def rows(run, metric, steps, values, kind=Kind.MEASURED):
    return arrow.from_columns(run=run, metric=metric, step=steps, value=values, kind=kind.value)


@pytest.fixture
def evidence():
    return Evidence(
        pa.concat_tables(
            [
                rows("toy/a/seed1", "loss", [2, 0, 1], [0.2, 0.0, 0.1]),
                rows("toy/a/seed0", "loss", [0, 1], [5.0, 6.0]),
                rows("toy/a/b/seed0", "loss", [0], [9.0], Kind.CONTROL),
                rows("toy/a/seed0", "entropy", [0], [1.0]),
                rows("toy/a/seed0", "entropy", [0], [2.0], Kind.PREDICTED),
            ]
        ).unify_dictionaries()
    )


def test_a_curve_comes_in_order_of_steps(evidence):
    curve = evidence.curve("loss", arm="a", seed=1)
    assert curve.steps.tolist() == [0, 1, 2]
    assert curve.values.tolist() == [0.0, 0.1, 0.2]
    assert curve.at(1.2) == 0.1


def test_curves_come_in_order_of_seed(evidence):
    assert [len(c.values) for c in evidence.curves("loss", arm="a")] == [2, 3]
    assert evidence.seeds == (0, 1)


def test_an_arm_may_have_a_slash(evidence):
    assert evidence.curve("loss", arm="a/b", seed=0).values.tolist() == [9.0]


def test_two_kinds_of_one_metric_must_be_told_apart(evidence):
    with pytest.raises(JomaError, match="found 2"):
        evidence.curve("entropy", arm="a", seed=0)
    found = evidence.curve("entropy", arm="a", seed=0, kind=Kind.PREDICTED)
    assert found.values.tolist() == [2.0]


def test_what_is_missing_is_named_with_what_is_there(evidence):
    with pytest.raises(JomaError, match=r"'gone' of arm 'a'.*There are: entropy of a \(measured\)"):
        evidence.curves("gone", arm="a")


def test_a_run_with_another_name_is_refused():
    with pytest.raises(JomaError, match="NAME/ARM/seedN"):
        _ = Evidence(rows("toy", "loss", [0], [1.0])).seeds


def test_no_records_are_no_seeds():
    assert Evidence(arrow.SCHEMA.empty_table()).seeds == ()


@pytest.mark.parametrize(
    ("effect", "control", "verdict"),
    [
        (True, False, Verdict.HOLDS),
        (True, True, Verdict.NOT_DISTINGUISHABLE),
        (False, False, Verdict.FAILS),
        (False, True, Verdict.FAILS),
    ],
)
def test_an_effect_counts_only_if_the_control_lacks_it(effect, control, verdict):
    assert Verdict.of(effect=effect, control=control) is verdict


def test_a_finding_has_median_and_range_over_seeds():
    finding = Finding.over_seeds(Verdict.HOLDS, {"x": [3.0, 1.0, 2.0], "once": [7.0]})
    assert finding.numbers == {"x": 2.0, "once": 7.0}
    assert finding.spread == {"x": (1.0, 3.0), "once": (7.0, 7.0)}
    assert finding.seeds == 3


def test_a_reference_names_each_item_once():
    ref = PaperRef(item="Theorem 2", equations=(3,), theorems=(2,))
    assert str(ref) == "Theorem 2, Eqn. 3"

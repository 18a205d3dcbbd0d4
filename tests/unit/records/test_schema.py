"""The rules of a row, for one reading and for a table of them."""

import math
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from joma._core.errors import JomaError
from joma.records import arrow
from joma.records.arrow import SCHEMA
from joma.records.schema import COLUMNS, Bound, Context, Kind, Reading, Record

BROKEN = {
    "nan without a reason": {"value": math.nan},
    "a reason without nan": {"value": 1.0, "status": "zero matrix"},
    "bounds of no kind": {"value": 1.0, "lower": 0.0, "upper": 2.0},
    "a bound that misses its value": {"value": 3.0, "lower": 0.0, "upper": 2.0, "bound": "ci95"},
    "half a bound": {"value": 1.0, "lower": 0.0, "bound": "certified"},
}
FINE = {
    "plain": {"value": 1.0},
    "infinite": {"value": math.inf},
    "undefined, with its reason": {"value": math.nan, "status": "zero matrix"},
    "bounded": {"value": 1.0, "lower": 1.0, "upper": 1.0, "bound": "certified"},
    "undefined, of a bounded metric": {"value": math.nan, "status": "x", "bound": "certified"},
}


def one(case: dict) -> pa.Table:
    return arrow.from_columns(run="r", metric="m", step=0, **case)


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_refused_in_a_reading_and_in_a_table(case):
    with pytest.raises(JomaError, match="Reading of 'm'"):
        Reading("m", **{**case, "bound": Bound(case.get("bound", "none"))})
    with pytest.raises(JomaError):
        one(case)


@pytest.mark.parametrize("case", FINE.values(), ids=FINE)
def test_a_row_that_keeps_the_rules_is_taken(case):
    reading = Reading("m", **{**case, "bound": Bound(case.get("bound", "none"))})
    table = one(case)
    assert repr(next(arrow.rows(table)).reading) == repr(reading)


def test_every_field_is_a_column_and_every_column_a_field():
    for owner in (Record, Reading):
        named = {f.name for f in fields(owner)} - {"reading"}
        assert named == {c.name for c in COLUMNS if c.owner is owner}


def test_an_empty_table_keeps_the_rules():
    arrow.check(SCHEMA.empty_table())


def test_an_unknown_column_is_named():
    with pytest.raises(JomaError, match="No record column named 'valeu'"):
        arrow.from_columns(run="r", metric="m", step=0, valeu=1.0)


def test_columns_of_two_lengths_are_refused():
    with pytest.raises(JomaError, match="one length"):
        arrow.from_columns(run="r", metric="m", step=[0, 1], value=[1.0])


def test_an_unknown_word_is_refused():
    with pytest.raises(JomaError, match="'kind' holds"):
        arrow.from_columns(run="r", metric="m", step=0, value=1.0, kind="guessed")


def test_a_missing_column_that_has_no_default_is_refused():
    with pytest.raises(JomaError, match="'run' has absent values"):
        arrow.from_columns(metric="m", step=[0], value=[1.0])


def test_masked_entries_are_absent():
    layer = np.ma.MaskedArray([3, 0], mask=[False, True])
    table = arrow.from_columns(run="r", metric="m", step=[0, 1], value=[1.0, 2.0], layer=layer)
    assert table["layer"].to_pylist() == [3, None]


numbers = st.floats(allow_nan=False)
places = st.none() | st.integers(0, 200)
readings = st.builds(
    Reading,
    metric=st.text(min_size=1, max_size=5),
    value=numbers,
    metric_version=st.integers(1, 9),
    layer=places,
    head=places,
    site=st.none() | st.sampled_from(["mlp.up", "decoder.cross"]),
    expert=places,
)
records = st.builds(
    Record,
    run=st.text(max_size=8),
    step=st.floats(0, 1e9),
    reading=readings,
    kind=st.sampled_from(Kind),
    context=st.none() | st.sampled_from(Context),
    stage=st.none() | st.text(max_size=4),
    tokens=st.none() | st.integers(0, 2**62),
    sequence_length=st.none() | st.integers(1, 2**30),
)


@given(st.lists(records, max_size=6))
def test_records_survive_the_way_through_a_table(some):
    table = arrow.table(some)
    arrow.check(table)
    assert list(arrow.rows(table)) == some

"""Fewer points, no lost peaks."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joma.report.thin import kept


@given(
    st.lists(st.one_of(st.floats(-1e3, 1e3), st.just(float("nan"))), min_size=1, max_size=200),
    st.integers(4, 50),
)
@settings(max_examples=60, deadline=None)
def test_ends_and_extremes_survive_and_the_limit_is_kept(values, most):
    values = np.array(values)
    found = kept(values, most)
    assert len(found) <= most
    assert found[0] == 0
    assert found[-1] == len(values) - 1
    assert (np.diff(found) > 0).all()
    if not np.isnan(values).all():
        assert np.nanmin(values[found]) == np.nanmin(values)
        assert np.nanmax(values[found]) == np.nanmax(values)


def test_a_gap_stays_a_gap():
    values = np.concatenate([np.zeros(50), np.full(50, np.nan), np.ones(50)])
    assert np.isnan(values[kept(values, 20)]).any()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_short_curve_is_left_as_it_is(count):
    assert kept(np.zeros(count), 8).tolist() == list(range(count))

"""Every benchmark says what it measures; running them is left to `joma bench`."""

import pytest

from joma.bench import registry
from joma.bench.base import Bench, Row


@pytest.mark.parametrize("name", registry.names())
def test_a_benchmark_says_what_it_measures(name):
    bench = registry.load(name)
    assert isinstance(bench, Bench)
    assert bench.says.endswith(".")


def test_a_row_knows_whether_its_bar_is_cleared():
    assert Row(name="time", value=1.0, bar=2.0).passed
    assert not Row(name="ratio", value=1.0, bar=2.0, at_least=True).passed
    assert Row(name="size", value=1.0).passed is None
    assert "MISSED" in str(Row(name="time", value=3.0, unit="s", bar=2.0))

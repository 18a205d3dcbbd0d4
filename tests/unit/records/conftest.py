from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from joma.records import arrow
from joma.records.store import Store


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def rows():
    """A table of one run, `n` rows with values `first, first + 1, ...` that tell them apart."""

    def build(n: int = 4, first: int = 0, **columns) -> pa.Table:
        place = np.arange(n)
        defaults = {
            "run": "toy",
            "metric": np.array(["entropy", "rank"])[place % 2],
            "step": place // 4,
            "value": (first + place).astype(float),
            "layer": place // 2 % 2,
        }
        return arrow.from_columns(**(defaults | columns))

    return build


@pytest.fixture
def values():
    """How often each value is in a table."""

    def count(table: pa.Table) -> Counter:
        return Counter(table["value"].to_pylist())

    return count

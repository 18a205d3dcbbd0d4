"""Which steps a series lacks, from the steps alone."""

import pytest

from joma.analysis._audit_steps import missing_steps


@pytest.mark.parametrize(
    "steps",
    [
        [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
        [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1000.0, 2000.0, 3000.0],
        [0.0, 0.0],
        [],
    ],
)
def test_a_whole_series_lacks_nothing_and_comes_to_an_end(steps):
    assert missing_steps(steps) == []

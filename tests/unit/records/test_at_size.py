"""The store at a tenth of its bars' size; `joma bench records` measures the whole."""

import pytest

from joma.bench import registry


@pytest.fixture(scope="module")
def measured():
    rows = list(registry.load("records").run(runs=10, parts=300))
    return {row.name: row for row in rows}


def test_every_bar_is_cleared(measured):
    assert [str(row) for row in measured.values() if row.passed is False] == []
    assert sum(row.bar is not None for row in measured.values()) == 6


def test_the_store_counts_the_bytes_it_reads_as_the_kernel_does(measured):
    for what in ("read", "parts", "compacted"):
        store = measured[f"{what}, bytes counted by the store"].value
        kernel = measured[f"{what}, bytes counted by the kernel"].value
        assert store == pytest.approx(kernel, abs=1e-3)  # MB; the kernel's counter is a file, too


def test_one_metric_of_one_run_of_ten_by_ten_is_a_small_share_of_the_bytes(measured):
    read = measured["read, bytes counted by the store"].value
    assert read < 0.02 * measured["read, bytes in the whole store"].value

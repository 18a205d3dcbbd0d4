"""Partial reads read little more than what was asked for."""

import math

import pytest

from joma.bench.sources import run
from joma.sources._index import SLACK, TensorInfo, coalesced


def check(rows):
    rows = {row.name: row for row in rows}
    barred = [row for row in rows.values() if row.bar is not None]
    assert len(barred) >= 6
    assert all(row.passed for row in barred), [str(row) for row in barred]


def test_bars_hold_for_a_shallow_file():
    check(run(layers=2, vocabulary=500))


@pytest.mark.slow
def test_bars_hold_for_a_file_shaped_like_pythia_410m():
    check(run())


def test_neighbours_are_joined_within_the_slack():
    def at(start, stop):
        return TensorInfo(f"{start}", "U8", (stop - start,), "f", start, stop, stop - start)

    infos = [at(0, 10_000), at(10_010, 20_000), at(30_000, 40_000), at(5_000, 10_000)]
    found = coalesced(infos)
    assert [(r.start, r.stop) for r in found] == [(0, 20_000), (30_000, 40_000)]
    read = sum(r.stop - r.start for r in found)
    assert math.isclose(read, 29_990, rel_tol=SLACK)
    assert coalesced([]) == ()

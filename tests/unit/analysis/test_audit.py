"""The rules of the audit, each on its own: gaps in steps, paths and their breaks."""

import numpy as np
import pytest

from joma.analysis._audit_path import distances, exchanged, jumps, strangers
from joma.analysis._audit_steps import missing_steps
from joma.analysis.audit import Defect, Listed, audit
from joma.records.arrow import SCHEMA

PYTHIA = [0, *(2**i for i in range(10)), *range(1000, 144_000, 1000)]


def walk(rng, count=40, straight=0.0):
    """A path in 64 dimensions: from a random walk to a straight line."""
    steps = rng.standard_normal((count, 64)) + straight * rng.standard_normal(64)
    return distances(np.cumsum(steps, 0))


def test_the_steps_of_pythia_lack_nothing():
    assert missing_steps(PYTHIA) == []


@pytest.mark.parametrize("gone", [4, 64, 5000, 77_000, 142_000])
def test_a_missing_step_is_named(gone):
    assert missing_steps([s for s in PYTHIA if s != gone]) == [gone]


def test_several_in_a_row_are_named():
    assert missing_steps([0, 10, 20, 30, 60, 70, 80]) == [40.0, 50.0]


def test_irregular_steps_are_left_alone():
    assert missing_steps([0, 3, 7, 20, 22, 40, 41, 90]) == []


@pytest.mark.parametrize("straight", [0.0, 1.0, 5.0])
def test_neither_a_random_walk_nor_a_line_has_jumps_or_exchanges(rng, straight):
    distance = walk(rng, straight=straight)
    order = list(range(40))
    assert jumps(distance, order) == set()
    assert exchanged(distance, order) == []
    assert strangers(distance, order) == set()


@pytest.mark.parametrize("straight", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("pair", [(10, 11), (10, 12), (3, 30), (38, 39)])
def test_two_that_changed_places_are_found(rng, straight, pair):
    distance = walk(rng, straight=straight)
    a, b = pair
    order = list(range(40))
    order[a], order[b] = order[b], order[a]
    moved = distance[np.ix_(order, order)]
    assert [set(found) for found in exchanged(moved, list(range(40)))] == [set(pair)]


def test_neighbouring_strangers_are_both_found(rng):
    points = np.cumsum(rng.standard_normal((40, 64)), 0)
    points[20] += 100 * rng.standard_normal(64)
    points[21] += 100 * rng.standard_normal(64)
    assert jumps(distances(points), list(range(40))) == {20, 21}


def test_a_fast_start_is_no_jump(rng):
    """Training moves most at first: five times as far between the first two revisions."""
    points = np.cumsum(rng.standard_normal((40, 64)), 0)
    points[0] -= 5 * (points[1] - points[0])
    assert jumps(distances(points), list(range(40))) == set()


def test_names_and_gaps_are_found_without_any_fingerprint():
    listing = [Listed(f"step{s}", "run", None, float(s)) for s in (0, 1, 2, 3, 5, 6, 7)]
    listing.append(Listed("old", "run", None, float("nan"), "'old' states no step."))
    listing.append(Listed("main", "run", None, float("nan"), "'main' states no step."))
    found = audit(SCHEMA.empty_table(), listing)
    assert [f.defect for f in found] == [Defect.NAME, Defect.MISSING]
    assert "4" in found[1].message

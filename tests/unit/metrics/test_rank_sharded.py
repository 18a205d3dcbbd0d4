"""Two processes that own the rows of a matrix together, with gloo."""

from pathlib import Path

import pytest

from unit.ranks import answers

# Sums over shards are taken in another order, in float32.
SINGLE = 1e-6

WORKER = Path(__file__).with_name("rank_worker.py")
LARGE = ["even", "uneven", "one empty"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    store = tmp_path_factory.mktemp("gloo") / "store"
    return answers(WORKER, store)


@pytest.mark.parametrize("name", LARGE)
def test_sharded_equals_full(ranks, name):
    value, lower, upper, passes, method = ranks[0][name]
    assert method == "lanczos" and passes <= 8
    assert value == pytest.approx(ranks[0]["full"][0], rel=SINGLE)
    assert lower <= value <= upper


@pytest.mark.parametrize("name", LARGE)
def test_at_most_two_percent_of_a_gather_is_sent(ranks, name):
    gathered = 8192 * 2048 * 4 / 2  # what each of two ranks would send of its half
    for rank in ranks:
        assert rank[f"{name}, bytes"] <= 0.02 * gathered


def test_every_rank_finds_the_same(ranks):
    assert ranks[0] == ranks[1]


@pytest.mark.parametrize("name", ["rows", "cols", "whole"])
def test_dtensors_are_read_where_they_are(ranks, name):
    value, _, _, _, method = ranks[0][f"DTensor {name}"]
    assert method == "lanczos"
    assert value == pytest.approx(ranks[0]["medium"][0], rel=SINGLE)


def test_small_dtensors_share_their_gram_matrix(ranks):
    value, _, _, passes, method = ranks[0]["DTensor small"]
    assert (method, passes) == ("gram", 1)
    assert value == pytest.approx(ranks[0]["small"][0], rel=1e-12)  # float64


def test_undefined_is_seen_by_all(ranks):
    for rank in ranks:
        assert rank["zero"] == "zero matrix"
        assert rank["nan on one rank"] == "non-finite entries"


@pytest.mark.parametrize("name", ["partial", "both"])
def test_other_placements_are_refused_with_a_sentence(ranks, name):
    assert "must be sharded by rows or by columns" in ranks[0][name]


def test_ranks_that_round_differently_stop_together(ranks):
    assert ranks[0]["different bits"] == ranks[1]["different bits"]

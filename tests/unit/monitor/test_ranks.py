"""Two ranks are watched as one process is: the same readings, nothing disturbed, no hang."""

from pathlib import Path

import pytest

from joma.records.store import Store
from unit.monitor.rank_worker import model, train
from unit.ranks import answers

WORKER = Path(__file__).with_name("rank_worker.py")
CASES = ["ddp", "fsdp", "ddp-raises", "fsdp-raises", "ddp-budget", "ddp-plain", "fsdp-plain"]

# Gradients of two halves are averaged in another order, in float32, twelve times.
READINGS = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder):
    return answers(WORKER, folder, *CASES)


@pytest.mark.parametrize("case", CASES)
def test_bits_of_both_ranks_stay(ranks, case):
    assert [rank[case]["same"] for rank in ranks] == [True, True]


@pytest.mark.slow
def test_bits_of_both_ranks_stay_for_200_steps(tmp_path):
    for rank in answers(WORKER, tmp_path, "ddp", "fsdp", RANK_STEPS="200"):
        assert [rank[case]["same"] for case in ("ddp", "fsdp")] == [True, True]


@pytest.mark.parametrize("case", ["ddp", "fsdp", "ddp-raises", "fsdp-raises"])
def test_an_observation_is_one_all_reduce(ranks, case):
    for rank in ranks:
        # Seven observations, and one word of rank 0 at the start. The layout is agreed on once,
        # and once it is asked whether all hold the same model.
        assert rank[case]["observed"] == 7
        assert rank[case]["calls"] == {"all_reduce": 8, "all_gather_object": 2}


@pytest.mark.parametrize("case", ["ddp-plain", "fsdp-plain"])
def test_two_ranks_read_what_one_process_reads(ranks, folder, case, tmp_path):
    settings = {"every": 2, "out": tmp_path, "run": "one"}
    train(model(0.0), -1, settings, rate=0.1)
    two, one = Store(folder / case).read(run="two"), Store(tmp_path).read(run="one")
    ours = {"loss", "overhead_percent", "probe_batch"}
    kept = [
        {key(row): row["value"] for row in table.to_pylist() if row["metric"] not in ours}
        for table in (two, one)
    ]
    assert kept[0].keys() == kept[1].keys()
    assert len(kept[0]) == 7 * (2 * 2 * 6 + 2 * 2)  # observations x (heads + matrices)
    assert kept[0] == pytest.approx(kept[1], rel=READINGS, abs=READINGS)


def key(row):
    return tuple(row[name] for name in ("step", "metric", "layer", "head"))


def test_one_record_per_reading_not_per_rank(ranks, folder):
    table = Store(folder / "ddp").read(run="two")
    rows = [key(row) for row in table.to_pylist()]
    assert len(rows) == len(set(rows))
    assert ranks[1]["ddp"]["metrics"] == {}


@pytest.mark.parametrize("case", ["ddp-raises", "fsdp-raises"])
def test_a_probe_that_fails_on_one_rank_is_left_out_on_both(ranks, case):
    first, second = (rank[case] for rank in ranks)
    assert "Raises failed: on another rank" in first["log"]
    assert "Raises failed: ValueError: only here" in second["log"]
    for rank in (first, second):
        for name in ("Raises", "RaisesOnWeights"):
            assert f"{name} failed 3 times: it is left out from now on." in rank["log"]
    assert "joma/attention_entropy/layer_01" in first["metrics"]  # the sound ones go on


def test_rank_0_decides_when_to_look(ranks):
    assert ranks[0]["ddp-budget"]["observed"] == ranks[1]["ddp-budget"]["observed"] >= 2


@pytest.mark.parametrize("case", ["tensor parallel", "pipeline parallel"])
def test_other_kinds_of_parallel_models_are_refused_with_a_sentence(ranks, case):
    for rank in ranks:
        assert "does not watch tensor, pipeline or context parallel models" in rank[case]

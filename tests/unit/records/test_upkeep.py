"""Compact, vacuum, merge: rows stay, once each, whatever the order of upkeep."""

import shutil
import time

import numpy as np
import pytest

from joma._core.errors import StoreError
from joma.records import disk
from joma.records.store import Store


@pytest.fixture
def many(store, rows):
    for i in range(20):
        store.append(rows(4, 4 * i, run=f"run{i % 2}"), tasks=f"t{i}")
    return store


def files(store: Store) -> int:
    return len(list(store.path.rglob("*.parquet")))


def test_compact_keeps_rows_tasks_and_provenance(many, values):
    many = Store(many.path, provenance={"seed": 1})
    many.append(many.read(run="run0"), tasks="again")
    before, order = values(many.read()), many.read()
    assert len(many.compact()) == 2
    assert values(many.read()) == before
    assert many.read().equals(order)
    assert many.completed() == {f"t{i}" for i in range(20)} | {"again"}
    assert [len(p.header.provenance) for p in many.parts()] == [1, 0]
    assert set(many.parts()[0].header.provenance) == set(many.provenance())


def test_compact_takes_one_run_and_leaves_the_rest(many):
    many.compact("run0")
    assert len(many.parts("run0")) == 1
    assert len(many.parts("run1")) == 10


def test_compacting_what_is_compact_does_nothing(many):
    many.compact()
    assert many.compact() == []
    assert many.compact("no such run") == []
    assert not (many.path / "runs" / "no such run").exists()


def test_compacted_parts_are_compacted_again(many, rows, values):
    for round_ in range(3):
        many.append(rows(4, 1000 * (round_ + 1), run="run0"), tasks=f"r{round_}")
        many.compact()
    [part] = many.parts("run0")
    assert len(part.header.replaces) == 13
    assert max(values(many.read()).values()) == 1
    assert {"t0", "r0", "r2"} <= many.completed()


def test_compact_bounds_the_rows_of_a_part(store, rows, values):
    for i in range(30):
        store.append(rows(100, 100 * i))
    before = values(store.read())
    store.compact(rows=1000)
    assert [p.header.rows for p in store.parts()] == [1000, 1000, 1000]
    assert store.compact(rows=1000) == []
    assert values(store.read()) == before


def test_compact_reads_one_metric_in_one_group(store, rng):
    from joma.records import arrow

    for i in range(20):
        store.append(
            arrow.from_columns(
                run="toy",
                metric=np.repeat(["a", "b"], 1000),
                step=np.full(2000, float(i)),
                value=rng.random(2000),
            )
        )
    store.compact()
    assert store.explain(metric="b").row_groups == 1
    assert store.read(metric="b").num_rows == 20_000


def test_a_second_compaction_is_told_to_wait(many):
    with disk.locked(many.path / "runs" / "run0"):
        with pytest.raises(StoreError, match="another process"):
            many.compact("run0")
        many.compact("run1")
    many.compact("run0")


def test_vacuum_deletes_only_what_was_replaced_long_enough_ago(many, values):
    before = values(many.read())
    many.compact()
    assert files(many) == 22
    assert many.vacuum() == []
    assert many.vacuum(older_than=1000.0) == []
    time.sleep(0.02)
    assert len(many.vacuum(older_than=0.01)) == 20
    assert files(many) == 2
    assert values(many.read()) == before
    assert len(many.completed()) == 20


def test_merging_twice_adds_nothing(many, rows, tmp_path, values):
    other = Store(tmp_path / "other", provenance={"seed": 2})
    other.append(rows(4, 1000, run="run1"), tasks="theirs")
    other.append(rows(4, 2000, run="new"))
    before = values(many.read()) + values(other.read())
    assert len(many.merge(other)) == 2
    assert many.merge(str(other.path)) == []
    assert values(many.read()) == before
    assert "theirs" in many.completed()
    assert many.provenance() == other.provenance()
    assert len(other.merge(many)) == 20
    assert values(other.read()) == before


def test_merging_from_a_wrong_path_is_a_sentence(many, tmp_path):
    with pytest.raises(StoreError, match="No records store at"):
        many.merge(tmp_path / "typo")


def test_a_file_system_without_locks_is_a_sentence(many, monkeypatch):
    def unsupported(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.raises(StoreError, match="cannot be locked: Operation not supported"):
        many.compact()


def test_merging_a_store_into_itself_adds_nothing(many):
    assert many.merge(many) == []


def test_merge_respects_what_either_side_replaced(many, rows, tmp_path, values):
    """Copies of one store, compacted on either side, in any order."""
    before = values(many.read())
    copy = Store(shutil.copytree(many.path, tmp_path / "copy"))
    copy.compact()
    copy.vacuum(older_than=0)
    assert copy.merge(many) == []  # its parts stand for all of ours
    many.merge(copy)
    assert values(many.read()) == before
    assert len(many.parts()) == 2
    many.append(rows(4, 1000, run="run0"))
    many.compact()
    copy.merge(many)  # now theirs stands for more
    assert values(copy.read()) == values(many.read())


def test_copies_compacted_apart_count_once(many, tmp_path, values):
    before = values(many.read())
    copy = Store(shutil.copytree(many.path, tmp_path / "copy"))
    copy.compact()
    many.compact()
    assert many.merge(copy) == []
    assert values(many.read()) == before


def test_merge_refuses_copies_that_grew_and_were_compacted_apart(many, rows, tmp_path, values):
    copy = Store(shutil.copytree(many.path, tmp_path / "copy"))
    for store, first in ((many, 1000), (copy, 2000)):
        store.append(rows(4, first, run="run0"))
        store.compact()
    before = values(many.read())
    with pytest.raises(StoreError, match="merge before compacting"):
        many.merge(copy)
    assert values(many.read()) == before


def test_merge_leaves_a_damaged_part_out(many, rows, tmp_path):
    from joma._core.errors import DamagedPartWarning

    path = many.parts("run0")[3].path
    path.write_bytes(path.read_bytes()[:-5])
    other = Store(tmp_path / "other")
    with pytest.warns(DamagedPartWarning, match=path.name):
        assert len(other.merge(many)) == 19
    assert other.verify() == {}


def test_merge_takes_only_the_runs_asked_for(many, tmp_path):
    other = Store(tmp_path / "other")
    other.merge(many, run="run1")
    assert other.runs() == ["run1"]

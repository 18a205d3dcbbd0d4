"""Grouped commits: few parts, bounded waiting, and tasks never before their rows."""

import time

import pytest

from joma._core.errors import JomaError, StoreError
from joma.records import disk
from joma.records.arrow import SCHEMA

LONG = 3600.0  # seconds: no timer fires within a test


def test_appends_are_grouped_into_one_part_per_run(store, rows):
    with store.writer(seconds=LONG) as writer:
        for i in range(10):
            writer.append(rows(4, 4 * i, run="a"), tasks=f"a{i}")
            writer.append(rows(2, run="b"))
        assert store.runs() == []
    assert len(store.parts("a")) == 1
    assert sorted(store.read(run="a")["value"].to_pylist()) == list(range(40))
    assert store.read(run="b").num_rows == 20
    assert store.completed("a") == {f"a{i}" for i in range(10)}


def test_flush_makes_rows_durable_and_names_the_parts(store, rows):
    writer = store.writer(seconds=LONG)
    writer.append(rows())
    [name] = writer.flush()
    assert store.parts()[0].path.name == name
    assert writer.flush() == []
    writer.close()


def test_rows_beyond_the_limit_are_committed(store, rows):
    with store.writer(seconds=LONG, rows=10) as writer:
        for i in range(6):
            writer.append(rows(4, 4 * i))
        assert store.read().num_rows == 12
    assert store.read().num_rows == 24


def test_rows_do_not_wait_longer_than_the_limit(store, rows):
    with store.writer(seconds=0.05) as writer:
        writer.append(rows(), tasks="t")
        deadline = time.monotonic() + 10
        while not store.completed() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.completed() == {"t"}
        writer.append(rows(4, 4))
    assert store.read().num_rows == 8


def test_an_error_in_the_block_still_flushes(store, rows):
    def fail():
        with store.writer(seconds=LONG) as writer:
            writer.append(rows())
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert store.read().num_rows == 4


def test_a_closed_writer_takes_no_more(store, rows):
    with store.writer(seconds=LONG) as writer:
        writer.append(rows())
    with pytest.raises(StoreError, match="closed"):
        writer.append(rows())


def test_a_bad_table_is_refused_when_handed_over(store, rows):
    with store.writer(seconds=LONG) as writer:
        writer.append(rows())
        with pytest.raises(JomaError):
            writer.append(rows().drop_columns("value"))
    assert store.read().num_rows == 4


def test_a_task_without_rows_is_committed(store):
    with store.writer(seconds=LONG) as writer:
        writer.append(SCHEMA.empty_table(), tasks={"toy": "t"})
    assert store.completed("toy") == {"t"}


def fail_for(run, real):
    def publish(path, data):
        if path.parent.name == run:
            raise StoreError("No space left on device")
        real(path, data)

    return publish


def test_after_a_failed_commit_nothing_is_lost_or_doubled(store, rows, monkeypatch):
    writer = store.writer(seconds=LONG)
    for run in ("a", "b", "c"):
        writer.append(rows(run=run), tasks=f"task {run}")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "publish", fail_for("b", disk.publish))
        for _ in range(2):
            with pytest.raises(StoreError, match="No space left"):
                writer.flush()
        with pytest.raises(StoreError, match="No space left"):
            writer.append(rows(4, 4, run="a"))  # not taken: memory stays bounded
    assert store.completed() == {"task a"}
    writer.append(rows(4, 4, run="a"))
    writer.close()
    assert store.completed() == {"task a", "task b", "task c"}
    assert sorted(store.read(run="a")["value"].to_pylist()) == list(range(8))
    assert store.read(run="b").num_rows == 4


def test_a_failed_timed_commit_is_tried_again(store, rows, monkeypatch):
    real = disk.publish
    with store.writer(seconds=0.02) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "publish", fail_for("toy", real))
            writer.append(rows())
            time.sleep(0.1)
        deadline = time.monotonic() + 10
        while not store.runs() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.read().num_rows == 4

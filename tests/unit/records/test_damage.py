"""Damaged files are named and left out: never a crash, never in silence, never by guess."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from joma._core.errors import DamagedPartWarning, StoreError
from joma.records import disk
from joma.records.names import PartKind, PartName, new_id

SIZES = {"small": 8, "large": 3000}


@pytest.fixture(params=SIZES)
def hurt(request, store, rows):
    """A store of three parts, and the path of the second."""
    n = SIZES[request.param]
    for i in range(3):
        store.append(rows(n, i * n), tasks=f"t{i}")
    return store, store.parts()[1].path, {float(v) for i in (0, 2) for v in range(i * n, i * n + n)}


def truncate(data, rng):
    return data[: int(rng.integers(len(data)))]


def empty(data, rng):
    return b""


def garbage(data, rng):
    return rng.bytes(len(data))


def flip(data, rng):
    """One bit among the pages, away from the footer."""
    at = int(rng.integers(8, len(data) // 2))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def flip_in_footer(data, rng):
    at = len(data) - 12 - int(rng.integers(500))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def longer(data, rng):
    return data + b"PAR1"


@pytest.mark.parametrize("spoil", [truncate, empty, garbage, flip_in_footer, longer])
def test_a_spoilt_part_is_named_and_skipped(hurt, rng, spoil):
    store, path, rest = hurt
    path.write_bytes(spoil(path.read_bytes(), rng))
    with pytest.warns(DamagedPartWarning, match=path.name) as caught:
        table = store.read()
    assert len(caught) == 1
    assert set(table["value"].to_pylist()) == rest
    with pytest.warns(DamagedPartWarning, match=path.name):
        assert store.completed() == {"t0", "t2"}
    assert list(store.verify()) == [path]


def test_no_flipped_bit_changes_a_number(hurt, rng):
    """Where a flip is harmless (padding, an unused field) the rows may be read, but unchanged."""
    store, path, rest = hurt
    data, whole = path.read_bytes(), sorted(store.read()["value"].to_pylist())
    seen = 0
    for _ in range(80):
        path.write_bytes(flip(data, rng))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = sorted(store.read()["value"].to_pylist())
        assert got == (sorted(rest) if caught else whole)
        seen += len(caught)
    assert seen >= 50


def test_a_flip_in_a_metric_nobody_reads_is_left_to_verify(store, rng):
    from joma.records import arrow

    n = 4000
    store.append(
        arrow.from_columns(
            run="toy", metric=["a"] * n + ["b"] * n, step=np.arange(2 * n), value=rng.random(2 * n)
        )
    )
    path = store.parts()[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1  # a value of metric a
    path.write_bytes(data)
    assert store.read(metric="b").num_rows == n
    with pytest.warns(DamagedPartWarning):
        assert store.read(metric="a").num_rows == 0
    assert list(store.verify()) == [path]


def test_foreign_files_are_named_and_others_ignored(store, rows):
    store.append(rows())
    folder = store.parts()[0].path.parent
    (folder / "table.parquet").write_bytes(b"not ours")
    (folder / "notes.txt").write_text("ignored")
    (folder / ".hidden.parquet").write_text("ignored")
    (folder / f"{disk.TEMPORARY}x.parquet").write_text("killed while writing")
    with pytest.warns(DamagedPartWarning, match=r"table\.parquet") as caught:
        assert store.read().num_rows == 4
    assert len(caught) == 1


def test_a_leftover_of_a_killed_writer_is_ignored_in_silence(store, rows):
    store.append(rows())
    folder = store.parts()[0].path.parent
    (folder / f"{disk.TEMPORARY}x.parquet").write_bytes(b"PAR1")
    assert store.read().num_rows == 4
    assert store.vacuum() == []
    assert store.vacuum(older_than=0) == [f"{disk.TEMPORARY}x.parquet"]


@pytest.mark.parametrize("where", ["page", "footer"])
def test_a_damaged_compacted_part_gives_way_to_what_it_replaced(store, rows, values, where):
    for i in range(4):
        store.append(rows(4, 4 * i), tasks=f"t{i}")
    [name] = store.compact()
    store.append(rows(4, 16))
    before = values(store.read())
    path = store.parts()[0].path.with_name(name)
    data = bytearray(path.read_bytes())
    data[30 if where == "page" else len(data) - 100] ^= 1
    path.write_bytes(data)
    with pytest.warns(DamagedPartWarning, match=name):
        assert values(store.read()) == before
    with pytest.warns(DamagedPartWarning, match=name):
        store.compact()
    # Healed: a sound part stands for all that the damaged one did.
    if where == "page":
        assert values(store.read()) == before
        assert store.completed() == {"t0", "t1", "t2", "t3"}
        assert name in store.vacuum(older_than=0)


def test_vacuum_keeps_what_a_damaged_part_replaced(store, rows, values):
    for i in range(4):
        store.append(rows(4, 4 * i))
    before = values(store.read())
    [name] = store.compact()
    path = store.parts()[0].path
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    assert store.vacuum(older_than=0) == []
    with pytest.warns(DamagedPartWarning, match=name):
        assert values(store.read()) == before


def test_compact_leaves_a_damaged_part_in_place(hurt, values):
    store, path, rest = hurt
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(DamagedPartWarning, match=path.name):
        [name] = store.compact()
    with pytest.warns(DamagedPartWarning, match=path.name):
        assert set(values(store.read())) == rest
    store.vacuum(older_than=0)
    assert sorted(p.name for p in path.parent.glob("*.parquet")) == sorted([path.name, name])


def test_a_part_we_may_not_read_is_not_called_damaged(store, rows, monkeypatch):
    store.append(rows())

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(disk, "read", refuse)
    with pytest.raises(PermissionError):
        store.read()


def test_a_read_that_races_with_a_deletion_looks_again(store, rows, values, monkeypatch):
    for i in range(4):
        store.append(rows(4, 4 * i))
    before, read = values(store.read()), disk.read
    calls = []

    def vacuumed_meanwhile(path):
        calls.append(path)
        if len(calls) == 2:
            monkeypatch.setattr(disk, "read", read)
            store.compact()
            store.vacuum(older_than=0)
        return read(path)

    monkeypatch.setattr(disk, "read", vacuumed_meanwhile)
    assert values(store.read()) == before
    assert len(calls) == 2


def test_a_reader_that_always_loses_the_race_says_so(store, rows, monkeypatch):
    store.append(rows())

    def gone(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(disk, "read", gone)
    with pytest.raises(StoreError, match="changed 20 times"):
        store.read()


def test_a_full_disk_leaves_no_part_and_is_a_sentence(store, rows, monkeypatch):
    store.append(rows())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left on device"):
            store.append(rows(4, 4), tasks="t")
    assert store.read().num_rows == 4
    assert store.completed() == set()
    assert len(list(store.parts()[0].path.parent.iterdir())) == 1
    store.append(rows(4, 4), tasks="t")
    assert store.read().num_rows == 8


def test_a_write_cut_short_by_the_system_leaves_no_part(store, rows):
    """A real short write: the system refuses files beyond 2000 bytes."""
    store.append(rows())
    code = (
        "import resource; from joma.records.store import Store\n"
        f"store = Store({str(store.path)!r})\n"
        "table = store.read()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "store.append(table)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "StoreError: Could not write" in done.stderr
    assert "File too large" in done.stderr
    assert store.read().num_rows == 4
    assert len(os.listdir(store.parts()[0].path.parent)) == 1


@pytest.mark.parametrize("step", ["open", "fsync", "rename", "fsync directory"])
def test_a_commit_that_breaks_at_any_step_leaves_nothing(store, rows, monkeypatch, step):
    store.append(rows())
    calls = {"fsync": 0}

    def broken(*args, **kwargs):
        raise OSError(5, "Input/output error")

    real = os.fsync

    def second(descriptor):
        calls["fsync"] += 1
        return broken() if calls["fsync"] == 2 else real(descriptor)

    with monkeypatch.context() as patch:
        if step == "open":
            patch.setattr("builtins.open", broken)
        else:
            name = "rename" if step == "rename" else "fsync"
            patch.setattr(os, name, second if step == "fsync directory" else broken)
        with pytest.raises(StoreError, match="Input/output error"):
            store.append(rows(4, 4))
    assert store.read().num_rows == 4
    assert len(os.listdir(store.parts()[0].path.parent)) == 1


def test_parts_that_stand_for_overlapping_parts_are_refused(store, rows):
    """Two compactions without a working lock: better a sentence than rows that count twice."""
    from joma.records import parts
    from joma.records.tables import solid

    store.append(rows())
    folder = store.parts()[0].path.parent
    ids = [new_id() for _ in range(3)]
    for replaces in (ids[:2], ids[1:]):
        name, data = parts.encode(solid(rows()), "toy", replaces=replaces)
        (folder / name.file).write_bytes(data)
    with pytest.raises(StoreError, match="rows would count twice"):
        store.read()


def test_a_part_name_with_a_wrong_checksum_is_damage(store, rows):
    store.append(rows())
    path = store.parts()[0].path
    other = PartName(new_id(), PartKind.SMALL, 1)
    path.rename(path.with_name(other.file))
    with pytest.warns(DamagedPartWarning, match="checksum"):
        assert store.read().num_rows == 0

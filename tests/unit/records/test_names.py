"""Run names become directories: any name, on any file system, and never two on one."""

import os

import pytest
from hypothesis import example, given, strategies as st

from joma._core.errors import StoreError
from joma.records import names

ANY_NAME = st.text(min_size=0, max_size=300)


@given(ANY_NAME)
@example("EleutherAI/pythia-160m")
@example("..")
@example(".")
@example("")
@example("~")
@example("a" * 4000)
@example("Ω/模型/😀")
@example("C:\\runs\\1")
@example("nul\0byte")
def test_a_directory_name_is_one_safe_path_component(run):
    directory = names.directory(run)
    assert directory not in ("", ".", "..")
    assert not directory.startswith(".")
    assert os.path.basename(directory) == directory
    assert directory.isascii()
    assert len(directory) <= 150
    assert not set(directory) & set('/\\:*?"<>|\0 ')


@given(ANY_NAME)
def test_a_run_is_read_back_from_its_directory_unless_it_is_long(run):
    back = names.run_of(names.directory(run))
    assert back == run or (back is None and (not run or len(names.directory(run)) > 100))


@given(ANY_NAME, ANY_NAME)
@example("a" * 400, "a" * 399 + "b")
@example("a/b", "a%2Fb")
@example("~x", "%7Ex")
def test_two_runs_never_share_a_directory(one, other):
    assert (names.directory(one) == names.directory(other)) == (one == other)


def test_a_part_name_is_read_back():
    name = names.PartName(names.new_id(), names.PartKind.COMPACTED, 0x1234)
    assert names.parse(name.file) == name


def test_other_files_are_not_parts():
    assert names.parse("table.parquet") is None
    assert names.parse(names.new_id() + "-s-00000000.parquet.crdownload") is None


def test_a_kind_from_the_future_asks_for_an_upgrade():
    with pytest.raises(StoreError, match="upgrade joma"):
        names.parse(f"{names.new_id()}-z-00000000.parquet")


def test_ids_sort_by_time():
    ids = [names.new_id() for _ in range(50)]
    assert [i[:14] for i in ids] == sorted(i[:14] for i in ids)
    assert len(set(ids)) == 50

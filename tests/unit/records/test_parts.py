"""One part: valid Parquet for everyone, a header, and row groups that end where metrics end."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joma.records import arrow, packed, parts
from joma.records.arrow import SCHEMA
from joma.records.names import PartKind
from joma.records.parts import SMALL, Small
from joma.records.tables import TEXT, by_run, ordered, solid


def encode(table, **header):
    return parts.encode(solid(table), "toy", **header)


@pytest.mark.parametrize("n", [0, 1, SMALL, SMALL + 1])
def test_any_parquet_reader_reads_a_part(rows, tmp_path, n):
    path = tmp_path / "part.parquet"
    path.write_bytes(encode(rows(n) if n else SCHEMA.empty_table(), tasks=("t",))[1])
    table = pq.read_table(path)
    assert table.num_rows == n
    assert table.column_names == SCHEMA.names
    footer = pq.read_metadata(path).metadata
    assert footer[b"joma.schema_version"] == b"1"
    assert json.loads(footer[b"joma.part"])["tasks"] == ["t"]


def test_kinds(rows):
    assert encode(rows(SMALL))[0].kind is PartKind.SMALL
    assert encode(rows(SMALL + 1))[0].kind is PartKind.LARGE
    assert encode(rows(2), replaces=("x", "y"))[0].kind is PartKind.COMPACTED


def groups(table):
    footer = pq.read_metadata(pa.BufferReader(encode(table)[1]))
    where = SCHEMA.get_field_index("metric")
    found = [footer.row_group(i).column(where).statistics for i in range(footer.num_row_groups)]
    return [(s.min, s.max, s.num_values) for s in found]


def test_row_groups_end_where_metrics_end(rows):
    metric = ["b"] * 2000 + ["a"] * 3000 + ["c"] * 100_000
    assert groups(rows(105_000, metric=metric)) == [
        ("a", "a", 3000),
        ("b", "b", 2000),
        ("c", "c", parts.GROUP),
        ("c", "c", 100_000 - parts.GROUP),
    ]


def test_short_metrics_share_a_row_group_and_long_ones_do_not(rows):
    metric = ["a"] * 10 + ["b"] * 2000 + ["c"] * 600 + ["d"] * 600 + ["e"] * 10
    assert groups(rows(3220, metric=metric)) == [
        ("a", "a", 10),
        ("b", "b", 2000),
        ("c", "d", 1200),
        ("e", "e", 10),
    ]


def test_words_that_are_not_used_are_not_written(rows):
    table = pa.concat_tables([rows(2000, run="a", metric="x"), rows(2000, run="b", metric="y")])
    [(_, a), (_, b)] = by_run(solid(table))
    assert parts.words(a, "metric") == ["x"]
    assert parts.words(b, "run") == ["b"]


def test_a_copy_in_another_layout_is_read_from_the_columns(rows, monkeypatch):
    table = ordered(solid(rows(50, layer=[None, 3] * 25)))
    data = encode(table)[1]
    monkeypatch.setattr(packed, "LAYOUT", packed.LAYOUT + 1)
    assert packed.unpack([Small.of(data).rows()]).equals(table)


def test_packed_rows_come_back(rng):
    def table(n, *choices):
        columns = {
            name: [choices[i] for i in rng.integers(len(choices), size=n)]
            for name in TEXT
            if name not in ("kind", "context", "bound", "status")
        }
        columns["run"] = columns["metric"] = "m"
        return solid(
            arrow.from_columns(
                step=rng.random(n),
                value=rng.random(n),
                layer=np.ma.masked_array(rng.integers(9, size=n), rng.random(n) < 0.5),
                tokens=[2**60] * n,
                **columns,
            )
        )

    tables = [table(5, "x", None), table(3, None), table(9, "z", "x", "y")]
    tables.insert(1, tables[0].slice(0, 0))
    back = packed.unpack([packed.pack(solid(t)) for t in tables])
    assert back.equals(solid(pa.concat_tables(tables)))


def test_packed_rows_are_picked_by_metric(rows):
    found = packed.unpack([packed.pack(solid(rows(10))), packed.pack(solid(rows(6)))], {"rank"})
    assert found["metric"].to_pylist() == ["rank"] * 8
    assert packed.unpack([packed.pack(solid(rows(4)))], {"other"}).num_rows == 0

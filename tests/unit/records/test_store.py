"""Appending and reading: what goes in comes out, selected, in order, run by run."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from joma._core.errors import JomaError, StoreError
from joma.records import arrow
from joma.records.arrow import SCHEMA
from joma.records.schema import Bound, Context, Kind, Reading, Record
from joma.records.store import Store, load
from joma.records.tables import ORDER

FULL = [
    Record(
        "EleutherAI/pythia-160m",
        1000.0,
        Reading(
            "rank", 1.5, 2, 1.4, 1.6, Bound.CERTIFIED, layer=3, head=1, site="mlp.up", expert=7
        ),
        kind=Kind.CONTROL,
        context=Context.WEIGHTS,
        stage="sft",
        tokens=2**40,
        sequence_length=2048,
    ),
    Record("EleutherAI/pythia-160m", 0.0, Reading("rank", float("nan"), status="zero matrix")),
    Record("模型 😀", -1.5, Reading("τ", float("inf"))),
    Record("", 2.0**53, Reading("", -0.0)),
]


def test_opening_creates_nothing(tmp_path):
    store = Store(tmp_path / "new")
    assert store.read().num_rows == 0
    assert store.runs() == []
    assert store.completed() == set()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("copies", [1, 500])  # small parts and large ones
def test_every_column_comes_back_as_it_went_in(store, copies):
    store.append(pa.concat_tables([arrow.table(FULL)] * copies))
    back = store.read()
    assert back.schema.equals(SCHEMA)
    want = sorted(map(repr, FULL * copies))
    assert sorted(map(repr, arrow.rows(back))) == want


def test_undefined_is_nan_with_its_status_and_absent_is_absent(store):
    store.append(arrow.table(FULL))
    row = store.read(run="EleutherAI/pythia-160m", steps=(0, 0)).to_pylist()[0]
    assert np.isnan(row["value"])
    assert row["status"] == "zero matrix"
    assert row["lower"] is None
    assert row["layer"] is None


def test_runs_and_metrics_are_listed(store):
    store.append(arrow.table(FULL))
    assert store.runs() == sorted({r.run for r in FULL})
    assert store.metrics() == ["", "rank", "τ"]
    assert store.metrics("模型 😀") == ["τ"]


def test_a_run_with_a_very_long_name_is_found(store, rows):
    long = "runs/" + "x" * 3000
    store.append(rows(run=long))
    store.append(rows(run=long + "y"))
    assert store.runs() == [long, long + "y"]
    assert store.read(run=long).num_rows == 4


def test_runs_that_share_a_directory_are_told_apart(store, rows, monkeypatch):
    """A file system that ignores case puts `A` and `a` into one directory."""
    monkeypatch.setattr("joma.records.names.directory", lambda run: run.lower())
    for run in ("a", "A"):
        store.append(rows(run=run), tasks=f"task of {run}")
        store.append(rows(2000, run=run))
    store.compact()
    assert set(store.read(run="A")["run"].to_pylist()) == {"A"}
    assert store.read(run="a").num_rows == 2004
    assert store.completed("a") == {"task of a"}
    assert store.read().num_rows == 4008


@pytest.mark.parametrize("n", [64, 5000])
def test_a_query_selects_rows(store, rows, n):
    store.append(rows(n))
    table = rows(n)
    columns = (table[c].to_pylist() for c in ("metric", "layer", "step", "value"))
    everything = list(zip(*columns, strict=True))

    def expect(test):
        return sorted(v for m, layer, s, v in everything if test(m, layer, s))

    def got(**query):
        return sorted(store.read(run="toy", **query)["value"].to_pylist())

    assert got(metric="rank") == expect(lambda m, layer, s: m == "rank")
    assert got(metric=["rank", "entropy", "none"]) == expect(lambda m, layer, s: True)
    assert got(layers=range(1, 2)) == expect(lambda m, layer, s: layer == 1)
    assert got(layers=[]) == []
    assert got(steps=(3, 7)) == expect(lambda m, layer, s: 3 <= s <= 7)
    assert got(steps=(None, 7)) == expect(lambda m, layer, s: s <= 7)
    assert got(steps=(3.5, None)) == expect(lambda m, layer, s: s >= 3.5)
    assert got(metric="rank", layers=[0], steps=(2, 4)) == expect(
        lambda m, layer, s: m == "rank" and layer == 0 and 2 <= s <= 4
    )


def test_what_is_not_there_gives_no_rows(store, rows):
    store.append(rows())
    assert store.read(run="other").num_rows == 0
    assert store.read(metric="other").num_rows == 0
    assert store.read(run=[]).num_rows == 0
    assert store.read(run="other").schema.equals(SCHEMA)


def test_rows_without_a_layer_belong_to_no_layer(store, rows):
    store.append(rows(4, layer=None))
    store.append(rows(3000, layer=None))
    assert store.read(layers=range(100)).num_rows == 0
    assert store.read().num_rows == 3004


def test_columns_are_projected(store, rows):
    store.append(rows(5000))
    store.append(rows(10))
    table = store.read(metric="rank", columns=["value", "step"])
    assert table.column_names == ["value", "step"]
    assert table.num_rows == 2505
    assert table.equals(store.read(metric="rank").select(["value", "step"]))


def test_an_unknown_column_is_named(store):
    with pytest.raises(StoreError, match="No record column named 'vaule'"):
        store.read(columns=["vaule"])


@pytest.mark.parametrize("n", [100, 3000])
def test_rows_come_in_the_documented_order(store, rng, n):
    def some(words):
        return [words[i] for i in rng.integers(len(words), size=n)]

    for run in ("b", "a"):
        store.append(
            arrow.from_columns(
                run=run,
                metric=some(["y", "x"]),
                layer=some([2, 0, None, 1]),
                head=some([None, 0, 10]),
                site=some(["mlp.up", None, "mlp.gate"]),
                stage=some(["sft", None, "base"]),
                step=rng.integers(5, size=n),
                value=np.arange(n) / 1.0,
            )
        )
    got = store.read(columns=["run", *ORDER, "value"]).to_pylist()

    def key(row):
        words = [row[c] for c in ("run", *ORDER, "value")]
        return [(word is None, word if word is not None else 0) for word in words]

    assert [r["value"] for r in got] == [r["value"] for r in sorted(got, key=key)]


def test_equal_rows_keep_the_order_of_appending(store, rows):
    for first in range(5):
        store.append(rows(1, first))
    store.append(rows(2000, 5, metric="entropy", layer=[0] * 2000, step=0.0))
    assert store.read()["value"].to_pylist() == list(range(2005))


def test_a_table_of_several_runs_is_split(store, rows):
    table = pa.concat_tables([rows(3, run="b"), rows(2, run="a"), rows(3, 3, run="b")])
    parts = store.append(table, tasks={"b": ["t1", "t2"], "a": "t3", "empty": "t4"})
    assert len(parts) == 3
    assert sorted(store.read(run="b")["value"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    assert store.completed("b") == {"t1", "t2"}
    assert store.completed("empty") == {"t4"}
    assert store.completed() == {"t1", "t2", "t3", "t4"}


def test_tasks_of_several_runs_need_to_know_which(store, rows):
    table = pa.concat_tables([rows(run="b"), rows(run="a")])
    with pytest.raises(StoreError, match=r"belongs to one run.*Pass tasks=\{run: keys\}"):
        store.append(table, tasks="t")
    assert store.runs() == []


def test_a_task_without_rows_is_complete_too(store):
    store.append(SCHEMA.empty_table(), tasks={"toy": "nothing to measure"})
    assert store.completed("toy") == {"nothing to measure"}
    assert store.read("toy").num_rows == 0


def test_an_empty_append_writes_no_part(store):
    assert store.append(SCHEMA.empty_table()) == []
    assert not store.path.exists()


def test_plain_strings_are_taken_as_words(store, rows):
    table = rows()
    plain = pa.schema(
        [
            pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type)
            for f in SCHEMA
        ]
    )
    store.append(table.cast(plain))
    assert store.read().schema.equals(SCHEMA)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop_columns("head"), "has the columns"),
        (lambda t: t.set_column(9, "value", pa.array(["x"] * 4)), "has the types"),
        (lambda t: t.set_column(9, "value", pa.array([1.0, None, 1.0, 1.0])), "null"),
        (lambda t: t.set_column(9, "value", pa.array([float("nan")] * 4)), "nan value needs"),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused(store, rows, change, says):
    with pytest.raises(JomaError, match=says):
        store.append(change(rows()))
    assert not store.path.exists()


def test_one_metric_is_read_without_touching_the_rest(store, rows, rng):
    """Of ten metrics, reading one costs about a tenth of the bytes, by the kernel's count."""
    n = 50_000
    for run in ("a", "b"):
        store.append(rows(n, run=run, metric=[f"m{i % 10}" for i in range(n)], value=rng.random(n)))
    size = sum(p.path.stat().st_size for p in store.parts())
    one = store.explain(run="a", metric="m3")
    assert one.parts == 1
    assert one.row_groups == 1
    assert one.bytes < 0.1 * size + 2 * 65_536

    def kernel() -> int:
        with open("/proc/self/io") as file:
            return int(next(line.split()[1] for line in file if line.startswith("rchar")))

    before = kernel()
    store.read(run="a", metric="m3")
    counting = -kernel() + kernel()  # reading the counter counts too
    assert kernel() - before - one.bytes < 4096 + 4 * abs(counting)


def test_layers_and_steps_skip_row_groups(store, rows):
    n = 400_000
    store.append(rows(n, metric="rank", layer=np.arange(n) // 100_000, step=np.arange(n) % 100_000))
    everything = store.explain(metric="rank").row_groups
    assert store.explain(metric="rank", layers=[2]).row_groups <= everything / 2
    assert store.read(metric="rank", layers=[2], steps=(10, 19)).num_rows == 10


def test_pandas_frames(store, rows):
    store.append(rows(4, layer=[0, None, 1, None]))
    frame = store.read_pandas(run="toy", metric="rank")
    assert frame["value"].tolist() == [1.0, 3.0]
    assert frame["layer"].isna().all()
    assert frame["metric"].dtype == "category"


def test_a_missing_pandas_is_a_sentence(store, rows):
    store.append(rows())
    code = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(name, *rest):\n"
        "        if name == 'pandas': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Without)\n"
        "from joma.records.store import Store\n"
        f"Store({str(store.path)!r}).read_pandas()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'joma[pandas]'" in done.stderr
    assert "MissingExtraError" in done.stderr


def test_load_wants_a_store_that_is_there(store, rows):
    with pytest.raises(StoreError, match="No records store at"):
        load(store.path)
    store.append(rows())
    assert load(str(store.path)).read().num_rows == 4


def test_a_part_from_a_newer_joma_asks_for_an_upgrade(store, rows, monkeypatch):
    with monkeypatch.context() as future:
        future.setattr("joma.records.parts.SCHEMA_VERSION", 2)
        store.append(rows())
    with pytest.raises(StoreError, match=r"schema version 2; this joma reads up to 1. Upgrade"):
        store.read()
    with pytest.raises(StoreError, match="Upgrade joma"):
        store.completed()


def test_records_need_no_torch(store, rows):
    store.append(rows())
    code = (
        "import sys; from joma.records.store import Store\n"
        f"assert Store({str(store.path)!r}).read().num_rows == 4\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

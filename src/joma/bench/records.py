"""The records store at size, each time beside bare pyarrow on the same rows.

Every measurement runs in a fresh process, so that its memory is its own. Files were just
written and are still in the page cache: what is measured is the store, not the disk.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from joma.bench.base import Bench, Row
from joma.records import arrow
from joma.records.store import Store

METRICS = [f"metric{i}" for i in range(10)]
LAYERS, HEADS = 10, 10
_BARE_PARTS = 1000  # small parts read with bare pyarrow; 20,000 would take a minute


def run(*, runs: int = 100, steps: int = 100, parts: int = 20_000) -> Iterator[Row]:
    """Write, read, and compact; `runs * steps * 1000` rows and `parts` small parts."""
    with tempfile.TemporaryDirectory(prefix="joma-bench-") as folder:
        yield from _large(Path(folder) / "large", runs, steps)
        yield from _small(Path(folder) / "small", parts)


def _large(path: Path, runs: int, steps: int) -> Iterator[Row]:
    rows = runs * steps * len(METRICS) * LAYERS * HEADS
    done = _child("write", path, runs, steps)
    yield Row(f"write {rows:,} rows", done["seconds"], "s", 60)
    yield Row("write, bare pyarrow", done["bare"], "s")
    yield Row("write, ratio to bare", done["seconds"] / done["bare"], "x")
    yield Row("write, peak memory", done["memory"] / 1e6, "MB", 1000)
    done = _child("read", path, _run(runs // 2), METRICS[7])
    yield Row(f"read one metric of one run, {done['rows']:,} rows", done["seconds"], "s", 1)
    yield Row("read, bare pyarrow on its row groups", done["bare"], "s")
    yield Row("read, ratio to bare", done["seconds"] / done["bare"], "x")
    yield Row("read, bytes counted by the store", done["bytes"] / 1e6, "MB")
    yield Row("read, bytes counted by the kernel", done["kernel"] / 1e6, "MB")
    yield Row("read, bytes in the whole store", done["all"] / 1e6, "MB")


def _small(path: Path, parts: int) -> Iterator[Row]:
    done = _child("write_small", path, parts)
    yield Row(f"append {parts:,} parts of 40 rows to one run", done["seconds"], "s")
    yield from _read_small(path, "parts", 2)
    done = _child("compact", path)
    yield Row("compact the parts", done["seconds"], "s")
    yield Row("compact, peak memory", done["memory"] / 1e6, "MB", 1000)
    yield from _read_small(path, "compacted", 0.5)


def _read_small(path: Path, what: str, bar: float | int) -> Iterator[Row]:
    done = _child("read", path, _run(0), METRICS[0])
    yield Row(f"{what}, read one metric, {done['rows']:,} rows", done["seconds"], "s", bar)
    yield Row(f"{what}, bare pyarrow", done["bare"], "s")
    yield Row(f"{what}, ratio to bare", done["seconds"] / done["bare"], "x")
    yield Row(f"{what}, bytes counted by the store", done["bytes"] / 1e6, "MB")
    yield Row(f"{what}, bytes counted by the kernel", done["kernel"] / 1e6, "MB")


def write(path: str, runs: int, steps: int) -> dict[str, float]:
    """Append one table per run, and write it bare; alternating, so that load hits both."""
    store, rng = Store(path), np.random.default_rng(0)
    bare = Path(path).with_suffix(".bare")
    seconds = seconds_bare = 0.0
    for i in range(runs):
        table = _table(_run(i), steps, rng)
        start = time.perf_counter()
        store.append(table, tasks=_run(i))
        middle = time.perf_counter()
        pq.write_table(table, bare)
        seconds += middle - start
        seconds_bare += time.perf_counter() - middle
    return {"seconds": seconds, "bare": seconds_bare, "memory": _peak_memory()}


def write_small(path: str, parts: int) -> dict[str, float]:
    store, rng = Store(path), np.random.default_rng(0)
    start = time.perf_counter()
    for i in range(parts):
        store.append(_small_table(i, rng), tasks=f"step{i}")
    return {"seconds": time.perf_counter() - start}


def read(path: str, run: str, metric: str) -> dict[str, float]:
    """The second of two reads, as the first also loads the code."""
    store = Store(path)
    store.read(run, metric)
    before, start = _kernel_bytes(), time.perf_counter()
    rows = store.read(run, metric).num_rows
    seconds, kernel = time.perf_counter() - start, _kernel_bytes() - before
    return {
        "rows": rows,
        "seconds": seconds,
        "bare": _bare(store, run, metric),
        "bytes": store.explain(run, metric).bytes,
        "kernel": kernel,
        "all": sum(f.stat().st_size for f in Path(path).rglob("*.parquet")),
    }


def compact(path: str) -> dict[str, float]:
    start = time.perf_counter()
    Store(path).compact()
    return {"seconds": time.perf_counter() - start, "memory": _peak_memory()}


BENCH = Bench("Records at size: write, read one metric, many small parts, compact.", run)


def _run(i: int) -> str:
    return f"suite/model-{i}"


def _table(run: str, steps: int, rng: np.random.Generator) -> pa.Table:
    """Rows as a monitor makes them: step by step, every metric, layer and head."""
    place = np.arange(steps * len(METRICS) * LAYERS * HEADS)
    metric = pa.array((place // (LAYERS * HEADS) % len(METRICS)).astype(np.int32))
    step = place // (LAYERS * HEADS * len(METRICS))
    return arrow.from_columns(
        run=run,
        step=step,
        tokens=step * 2048,
        metric=pa.DictionaryArray.from_arrays(metric, METRICS),
        value=rng.random(len(place)),
        layer=place // HEADS % LAYERS,
        head=place % HEADS,
        context="probe",
    )


def _small_table(step: int, rng: np.random.Generator) -> pa.Table:
    return arrow.from_columns(
        run=_run(0),
        step=np.full(40, float(step)),
        metric=np.repeat(METRICS[:4], 10),
        value=rng.random(40),
        layer=np.tile(np.arange(10), 4),
        context="probe",
    )


def _bare(store: Store, run: str, metric: str) -> float:
    """Seconds of bare pyarrow for the row groups that hold the metric."""
    parts = store.parts(run)
    some = parts[:_BARE_PARTS]
    start = time.perf_counter()
    for part in some:
        file = pq.ParquetFile(part.path)
        where = file.schema_arrow.get_field_index("metric")
        for i in range(file.num_row_groups):
            found = file.metadata.row_group(i).column(where).statistics
            if found.min <= metric <= found.max:
                file.read_row_group(i)
    return (time.perf_counter() - start) * len(parts) / len(some)


def _child(function: str, *arguments: Any) -> dict[str, Any]:
    """Call a function of this module in a fresh process."""
    words = [str(a) if isinstance(a, Path) else a for a in arguments]
    code = f"import json; from joma.bench import records as r; print(json.dumps(r.{function}(*"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}{words!r})))"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _peak_memory() -> float:
    """Peak resident bytes of this process alone; `getrusage` would count the parent's too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024.0 * int(line.split()[1])
    return float("nan")


def _kernel_bytes() -> float:
    """Bytes this process has asked the kernel to read."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return float(line.split()[1])
    return float("nan")

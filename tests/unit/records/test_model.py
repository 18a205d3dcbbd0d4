"""Random histories of two stores, against two plain lists."""

from collections import Counter

import numpy as np
import pytest

from joma._core.errors import StoreError
from joma.records.store import Store

RUNS = ("a", "b/c", "..")


class Model:
    """A store, and what it should hold: for each run, values and tasks."""

    def __init__(self, path, rows):
        self.store, self.rows = Store(path), rows
        self.values = {run: Counter() for run in RUNS}
        self.tasks = set()

    def append(self, rng, first):
        run = RUNS[rng.integers(3)]
        n = int(rng.choice([1, 3, 50, 1500]))
        self.store.append(self.rows(n, first, run=run), tasks={run: [f"{run} {first}"]})
        self.values[run].update(float(v) for v in range(first, first + n))
        self.tasks.add(f"{run} {first}")

    def merge(self, other):
        """Only what the other has in addition; a value's owner is its store, so sets do."""
        try:
            self.store.merge(other.store)
        except StoreError:
            return False
        for run in RUNS:
            self.values[run] |= other.values[run]
        self.tasks |= other.tasks
        return True

    def check(self):
        for run in RUNS:
            got = self.store.read(run=run)
            assert Counter(got["value"].to_pylist()) == self.values[run]
            metric = got["metric"].to_pylist()
            assert self.store.read(run=run, metric="rank").num_rows == metric.count("rank")
        assert self.store.completed() == self.tasks


@pytest.mark.parametrize("seed", range(6))
def test_a_store_is_a_list(tmp_path, rows, seed):
    rng = np.random.default_rng(seed)
    here, there = Model(tmp_path / "here", rows), Model(tmp_path / "there", rows)
    first, refused = 0, False
    for _ in range(40):
        model = here if rng.random() < 0.5 else there
        match rng.integers(6):
            case 0 | 1 | 2:
                model.append(rng, first)
                first += 2000
            case 3:
                model.store.compact(rows=int(rng.choice([10, 2000, 100_000])))
            case 4:
                model.store.vacuum(older_than=0)
            case 5 if not refused:
                refused = not here.merge(there)
        if rng.random() < 0.1:
            model.check()
    here.check()
    there.check()

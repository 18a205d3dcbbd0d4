"""Real processes: writers side by side, and writers and compactions killed at any moment."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from joma.records.store import Store

KILLS = 30

# One process loads the code once and forks a child for each job: a kill costs milliseconds.
# A child writes a line to the file `said` for everything that was acknowledged to it.
NURSERY = """
import json, os, sys
import numpy as np
from joma.records import arrow
from joma.records.store import Store

def write(say, path, name, first, count):
    store = Store(path)
    for i in range(first, first + count):
        value = np.arange(3) + 3.0 * i
        table = arrow.from_columns(run="toy", metric=name, step=[i] * 3, value=value)
        store.append(table, tasks=f"{name} {i}")
        say(i)

def compact(say, path):
    say("start")
    Store(path).compact()
    say("done")

arrow.from_columns(run="warm", metric="up", step=np.zeros(1), value=np.zeros(1))
for line in sys.stdin:
    job, said, *arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        globals()[job](lambda word: os.write(file, f"{word}\\n".encode()), *arguments)
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Nursery:
    def __init__(self, folder):
        self.said = folder / "said"
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, job, *arguments) -> int:
        """Begin a job; gives the process id once it has said its first word."""
        self.said.write_text("")
        words = [
            job,
            str(self.said),
            *(a if isinstance(a, int) else str(a) for a in arguments),
        ]
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        deadline = time.monotonic() + 60
        while not self.said.read_text():
            assert time.monotonic() < deadline, f"{job} said nothing"
            time.sleep(0.0005)
        return child

    def finish(self) -> list[str]:
        """Wait for the job to end, by itself or by force; gives what it said."""
        self.process.stdout.readline()
        return self.said.read_text().splitlines()

    def killed(self, seconds, job, *arguments) -> list[str]:
        """What a job had said when it was killed, some seconds after its first word."""
        child = self.start(job, *arguments)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        return self.finish()

    def close(self):
        self.process.communicate()


@pytest.fixture
def nursery(tmp_path):
    made = Nursery(tmp_path)
    yield made
    made.close()


@pytest.fixture
def other(tmp_path):
    (tmp_path / "other").mkdir()
    made = Nursery(tmp_path / "other")
    yield made
    made.close()


def steps(store: Store) -> Counter:
    """How many rows each append left; whole appends have three."""
    return Counter(store.read(columns=["step"])["step"].to_pylist())


def test_two_processes_append_at_once_and_no_row_is_lost_or_doubled(store, nursery, other):
    count = 100
    nursery.start("write", store.path, "a", 0, count)
    other.start("write", store.path, "b", 1000, count)
    while len(seen := steps(store)) < 2 * count:
        assert set(seen.values()) <= {3}  # a reader beside them sees whole appends only
    nursery.finish()
    other.finish()
    assert steps(store) == Counter(dict.fromkeys([*range(count), *range(1000, 1000 + count)], 3))
    assert len(store.completed()) == 2 * count


def test_compaction_beside_a_writer_loses_nothing(store, nursery):
    count = 100
    nursery.start("write", store.path, "a", 0, count)
    before = steps(store)
    while len(before) < count:
        store.compact()
        after = steps(store)
        assert before <= after
        assert set(after.values()) == {3}
        before = after
    nursery.finish()
    assert steps(store) == Counter(dict.fromkeys(range(count), 3))


def test_a_killed_writer_loses_no_acknowledged_row(store, nursery, rng):
    """Of an append that was not acknowledged, all rows may be there, or none."""
    acknowledged: set[float] = set()
    for i in range(KILLS):
        said = nursery.killed(rng.uniform(0, 0.03), "write", store.path, "a", 10_000 * i, 10_000)
        acknowledged |= {float(step) for step in said}
        seen = steps(store)
        assert acknowledged <= set(seen)
        assert len(set(seen) - acknowledged) <= i + 1  # at most one more for each kill
        assert set(seen.values()) == {3}
        assert store.completed() == {f"a {step:.0f}" for step in seen}
    assert len(acknowledged) > KILLS


@pytest.mark.parametrize("vacuum", [False, True])
def test_a_killed_compaction_leaves_every_row_once(store, rows, values, nursery, rng, vacuum):
    for i in range(60):
        store.append(rows(3, 3 * i), tasks=f"t{i}")
    start = time.perf_counter()
    nursery.start("compact", store.path)
    assert nursery.finish() == ["start", "done"]
    usual = time.perf_counter() - start
    ended = Counter()
    for i in range(60, 60 + KILLS):
        for j in range(3):
            store.append(rows(3, 9 * i + 3 * j + 10_000), tasks=f"t{i}.{j}")
        before = values(store.read())
        said = nursery.killed(rng.uniform(0, usual), "compact", store.path)
        ended[said[-1]] += 1
        assert values(store.read()) == before
        if vacuum:
            store.vacuum(older_than=0)
            assert values(store.read()) == before
            assert not list(store.path.rglob(".tmp-*"))
    assert set(before.values()) == {1}
    assert len(store.completed()) == 60 + 3 * KILLS
    assert ended["start"] > 0, "no kill came in time"

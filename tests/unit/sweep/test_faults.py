"""Sweeps in real processes that are killed, starved and lied to: nothing lost, nothing doubled."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from joma._core.errors import StoreError
from joma.records.store import Store
from joma.sweep.job import covered
from joma.sweep.run import Sweep
from standin.hub import Faults, Hub
from unit.sweep.logged import LoggedSource, pids, reads

PAUSE = 0.02  # seconds a read takes, so that there is a middle to be killed in


@pytest.fixture(scope="module")
def calm(folder, tmp_path_factory):
    """The records of a sweep that nobody disturbed."""
    return Sweep(str(folder), ["rank"], out=tmp_path_factory.mktemp("calm")).run().store


@pytest.fixture
def nursery(root):
    process = subprocess.Popen(
        [sys.executable, "-m", "unit.sweep.driver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root / "tests",
    )
    yield process
    process.communicate()


def begin(nursery, *words) -> int:
    plain = [w if isinstance(w, float) else str(w) for w in words]
    nursery.stdin.write(f"{json.dumps(plain)}\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline())


def done(out) -> set[str]:
    """Revisions whose rows are committed."""
    return {name for names in covered(Store(out).completed()).values() for name in names}


def kill_driver(nursery, folder, tmp_path, kills, seed) -> int:
    """Kill sweeps at random moments until enough were hit; then let one finish."""
    chance, hit = random.Random(seed), 0
    out, log = tmp_path / "out", tmp_path / "log"
    usual = 48 * PAUSE * 1.5
    while hit < kills:
        if len(done(out)) == 48:  # start over: there must be something to interrupt
            out = tmp_path / f"out{hit}"
        before, seen = done(out), len(reads(log))
        child = begin(nursery, folder, log, out, PAUSE)
        while len(reads(log)) == seen and time.sleep(0.002) is None:
            pass
        time.sleep(chance.uniform(0, usual / 2))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        hit += int(nursery.stdout.readline()) == signal.SIGKILL
        assert not before & set(reads(log)[seen:]), "a committed task was started again"
    begin(nursery, folder, log, out, PAUSE)
    assert int(nursery.stdout.readline()) == 0
    return out


def test_a_driver_killed_twice_goes_on_where_it_was(nursery, folder, calm, rows, tmp_path):
    out = kill_driver(nursery, folder, tmp_path, 2, seed=0)
    assert rows(Store(out)) == rows(calm)


@pytest.mark.slow
def test_a_driver_killed_at_20_random_moments_goes_on(nursery, folder, calm, rows, tmp_path):
    out = kill_driver(nursery, folder, tmp_path, 20, seed=1)
    assert rows(Store(out)) == rows(calm)


def test_a_killed_worker_process_is_replaced_and_its_task_done_again(folder, calm, rows, tmp_path):
    trap = tmp_path / "trap"
    trap.touch()
    source = LoggedSource(folder, tmp_path / "log", 0.0, ("step20000", trap))
    done = Sweep(source, ["rank"], out=tmp_path / "out", engine="process", workers=1).run()
    assert not done.quarantined
    assert done.failures == 1
    assert rows(done.store) == rows(calm)


def test_a_server_that_fails_a_fifth_of_the_time_changes_no_value(
    folder, calm, rows, tmp_path, monkeypatch
):
    """429s, 500s, resets, short bodies and wrong lengths."""
    from joma.sources._retry import Retry
    from joma.sources.hub import HubSource

    repository = tmp_path / "hub" / "owner"
    repository.mkdir(parents=True)
    (repository / "suite").symlink_to(folder)
    with Hub(tmp_path / "hub", faults=Faults(rate=0.2, seed=0)) as hub:
        source = HubSource(
            "owner/suite", endpoint=hub.url, retry=Retry(attempts=12, first=0.01, longest=0.05)
        )
        done = Sweep(source, ["rank"], out=tmp_path / "out").run()
    assert not done.quarantined
    assert done.cost.retries > 20

    def values(store):
        return [{**row, "run": None} for row in rows(store)]

    assert values(done.store) == values(calm)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_a_sentence_and_a_larger_one_resumes(folder, calm, rows, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    log = tmp_path / "log"
    try:
        sweep = Sweep(
            LoggedSource(folder, log, PAUSE), ["rank"], out=disk / "out", commit_seconds=0.05
        )
        with pytest.raises(StoreError, match="No space left on device"):
            sweep.run()
        kept = done(disk / "out")
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        seen = len(reads(log))
        result = sweep.run()
        assert not kept & set(reads(log)[seen:])
        assert rows(result.store) == rows(calm)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_workers_end_when_their_driver_is_killed(folder, tmp_path, root):
    log, out = tmp_path / "log", tmp_path / "out"
    code = (
        "import sys; from joma.sweep.run import Sweep; from unit.sweep.logged import LoggedSource\n"
        f"Sweep(LoggedSource({str(folder)!r}, {str(log)!r}, 0.05), ['rank'], out={str(out)!r}, "
        "engine='process', workers=2).run()"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=root / "tests")
    while len(set(pids(log) if log.exists() else ())) < 2:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in set(pids(log))):
        assert time.monotonic() < deadline, "a worker outlived its driver"
        time.sleep(0.1)

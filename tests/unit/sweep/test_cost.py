"""The cost model: limits, what saturates first, and requests as a server counts them."""

import pytest

from joma.sources.hub import HubSource
from joma.sweep.cost import Limits, Machine, Work, estimate, makespan, paced, work_of
from joma.sweep.plan import plan
from joma.sweep.run import Sweep
from joma.sweep.scale import PYTHIA, SHARES, all_suites, pythia
from standin.hub import Hub


def test_what_saturates_first_depends_on_the_number_of_workers():
    work = Work(bytes=1e12, requests=1e5, measuring=1e4, tasks=1000)
    assert estimate(work, 1).first == "workers"
    assert estimate(work, 1000).first == "requests"
    assert estimate(work, 1000, limits=Limits(bandwidth=1e7)).first == "network"


def test_more_workers_are_never_slower_nor_than_tasks():
    work = Work(measuring=1000.0, tasks=10)
    times = [estimate(work, n).seconds for n in (1, 2, 10, 20)]
    assert times == sorted(times, reverse=True)
    assert times[2] == times[3]


def test_tasks_go_to_the_worker_that_is_free():
    assert makespan([1.0] * 5, 2) == 3.0
    assert makespan([], 3) == 0.0


def test_a_warm_revision_is_cheaper_than_a_cold_one_and_small_ones_are_alike():
    machine = Machine()
    assert machine.measuring((4096, 1024), 2) < 2 * machine.measuring((4096, 1024), 1)
    assert machine.measuring((512, 128), 2) == 2 * machine.measuring((512, 128), 1)


def test_lower_matrices_are_a_tenth_to_a_third_of_pythia():
    """Of twice the parameters in bytes; 14m to 12b as their names say."""
    for name in ("410m", "1.4b", "12b"):
        model = PYTHIA[name]
        parameters = float(name[:-1]) * (1e6 if name.endswith("m") else 1e9)
        share = pythia(name).bytes / (154 * model.copies * 2 * parameters)
        assert SHARES[0] <= share <= SHARES[1] + 0.03
    assert all_suites(0.09).bytes == pytest.approx(0.09 * 115e12)


def test_planned_requests_are_those_that_a_server_sees(folder, tmp_path):
    repository = tmp_path / "hub" / "owner"
    repository.mkdir(parents=True)
    (repository / "suite").symlink_to(folder)
    with Hub(tmp_path / "hub") as hub:
        source = HubSource("owner/suite", "0..7000", endpoint=hub.url)
        planned = plan(source, ["rank"])
        done = Sweep(
            HubSource("owner/suite", "0..7000", endpoint=hub.url), ["rank"], out=tmp_path / "out"
        ).run()
    # Redirects count as requests here; the plan leaves them out.
    assert planned.total.requests / 2 <= done.cost.requests <= 2 * planned.total.requests
    assert work_of(planned).bytes == planned.total.bytes


def test_the_pace_is_measured_on_the_suite_itself(folder):
    from joma.sources.local import LocalSource

    todo = plan(LocalSource(folder), ["rank"])
    pace = paced(todo, revisions=2, rounds=1)
    assert all(pace.seconds(task) > 0 for task in todo.tasks)

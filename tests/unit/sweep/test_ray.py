"""Sweeps on a real Ray cluster of two nodes, whose workers and nodes die."""

import os
import sys
import warnings

import pytest

from joma._core.errors import JomaError
from joma.sweep.run import Sweep
from unit.sweep.logged import LoggedSource, pids, reads

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),  # workers import this folder's modules
        "OMP_NUM_THREADS": "1",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(initialize_head=True, head_node_args=NODE)
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def calm(folder, tmp_path_factory):
    return Sweep(str(folder), ["rank"], out=tmp_path_factory.mktemp("calm")).run().store


def test_a_killed_ray_worker_costs_one_attempt(cluster, folder, calm, rows, tmp_path):
    trap = tmp_path / "trap"
    trap.touch()
    source = LoggedSource(folder, tmp_path / "log", 0.0, ("step20000", trap))
    done = Sweep(source, ["rank"], out=tmp_path / "out", engine="ray").run()
    assert not trap.exists()
    assert done.failures == 1
    assert not done.quarantined
    assert rows(done.store) == rows(calm)


def test_a_node_that_is_removed_mid_sweep_loses_nothing(cluster, folder, calm, rows, tmp_path):
    node = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    log = tmp_path / "log"
    removed = []

    def remove(state):
        if not removed and len(set(pids(log))) > 1:  # both nodes are at work
            removed.append(state.done)
            cluster.remove_node(node, allow_graceful=False)

    source = LoggedSource(folder, log, 0.2)
    done = Sweep(source, ["rank"], out=tmp_path / "out", engine="ray", workers=2).run(remove)
    assert removed, "the sweep was over before both nodes had worked"
    assert not done.quarantined
    assert rows(done.store) == rows(calm)
    repeated = {name for name in reads(log) if reads(log).count(name) > 1}
    assert len(repeated) <= 16  # what was in flight: a task of eight on each node


def test_an_address_without_a_cluster_is_a_sentence(folder, tmp_path):
    if ray.is_initialized():
        ray.shutdown()
    sweep = Sweep(str(folder), out=tmp_path, engine="ray", address="127.0.0.1:1")
    with pytest.raises(JomaError, match=r"No Ray cluster at 127\.0\.0\.1:1"):
        sweep.run()

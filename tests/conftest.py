import os
from collections.abc import Iterator
from pathlib import Path

# Before NumPy and torch start their threads: tests use small arrays, where threads only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(config, items):
    """Leave `slow` tests to those who ask for them, by name or with `-m`."""
    if config.option.markexpr or any("::" in arg for arg in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded generator: tests never touch the global random state."""
    return np.random.default_rng(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Two threads on a busy machine stall small operations by orders of magnitude."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared folder of specs and data (`JOMA_SHARED`, default `../shared`)."""
    path = Path(os.environ.get("JOMA_SHARED", ROOT.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"needs the shared folder; {path} is not there (set JOMA_SHARED)")
    return path

import pytest

from joma.records.tables import ORDER
from unit.sweep.suites import revision_names, save, trajectory

COUNT = 48


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A suite of 48 small revisions in two files each: six tasks of eight for one probe."""
    states = dict(zip(revision_names(COUNT), trajectory(COUNT), strict=True))
    return save(tmp_path_factory.mktemp("suites") / "suite", states)


@pytest.fixture
def rows():
    """The records of a store, in one order. There is no timing column to leave out."""

    def listed(store):
        found = store.read().to_pylist()
        return sorted(found, key=lambda row: [str(row[name]) for name in ("run", *ORDER)])

    return listed

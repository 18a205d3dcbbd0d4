"""Every experiment runs in `ci`, repeats itself, and decides its claims. Tested on arrival."""

import math

import pytest

from joma.experiments import _runner, registry
from joma.experiments.base import Experiment, Finding, Verdict
from joma.records import arrow
from joma.records.schema import Kind
from joma.records.store import Store

SEEDS = 2
LONG = {  # minutes: run by name, or with -m slow
    *("contrast", "fig5", "fig6", "fig8", "mechanism", "neuron"),
    *("saliency", "superposition", "table1", "thm1"),
}
NAMES = [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in registry.names()]


@pytest.fixture(scope="module", params=NAMES)
def named(request):
    return request.param, registry.load(request.param)


@pytest.fixture(scope="module")
def out(named, tmp_path_factory):
    """A folder with the records of two seeds, or of one if the experiment has no more."""
    folder = tmp_path_factory.mktemp(named[0])
    _runner.run(*named, seeds=min(SEEDS, named[1].count("ci")), out=folder)
    return folder


@pytest.fixture(scope="module")
def table(named, out):
    return Store(_runner.place(out, named[0], "ci", named[1])).read()


@pytest.mark.parametrize("name", registry.names())
def test_an_experiment_says_what_it_does(name):
    experiment = registry.load(name)
    assert isinstance(experiment, Experiment)
    assert {"ci", "paper"} <= set(experiment.presets)
    assert experiment.title.endswith(".")
    assert experiment.paper.item
    assert experiment.cost
    assert experiment.claims
    assert len({c.name for c in experiment.claims}) == len(experiment.claims), name
    for claim in experiment.claims:
        assert claim.says.endswith(".")
        assert claim.control
        assert claim.rule


def test_records_are_valid_and_runs_are_named_by_arm_and_seed(named, table):
    name, _ = named
    assert table.num_rows
    arrow.check(table)
    for run in set(table["run"].to_pylist()):
        first, *arm, seed = run.split("/")
        assert first == name and arm and seed in {f"seed{i}" for i in range(SEEDS)}


def test_one_seed_gives_the_same_records_twice(named, table, tmp_path):
    again = _runner.run(*named, seeds=1, out=tmp_path).read()
    first = [row for row in table.to_pylist() if row["run"].endswith("/seed0")]
    assert str(first) == str(again.to_pylist())  # as text, nan equals nan


def test_another_seed_gives_other_records(named, table):
    if named[1].count("ci") == 1:
        pytest.skip("nothing in it is drawn")
    seen = {str(i): set() for i in range(SEEDS)}
    for row in table.select(["run", "kind", "value"]).to_pylist():
        if row["kind"] == Kind.MEASURED:
            seen[row["run"].rsplit("seed")[-1]].add(row["value"])
    assert seen["0"] != seen["1"]


def test_claims_are_decided_with_numbers_and_spread(named, out):
    name, experiment = named
    decided = _runner.check(name, experiment, out=out)
    assert [claim for claim, _ in decided] == list(experiment.claims)
    for claim, finding in decided:
        assert isinstance(finding, Finding), claim.name
        assert finding.verdict in set(Verdict)
        assert finding.numbers.keys() == finding.spread.keys() and finding.numbers
        assert 1 <= finding.seeds <= SEEDS
        for key, value in finding.numbers.items():
            low, high = finding.spread[key]
            assert math.isnan(value) or low <= value <= high

"""What is kept in `results/`: complete, small, and decided by the rules as the docs say."""

import pytest

from joma.experiments import _ledger, _runner, registry

SEEDS = {"contrast": 3, "mechanism": 3, "fig5": 3, "table1": 5}
LARGEST = 5_000_000  # bytes, all together: they travel with every clone


@pytest.fixture(scope="module")
def kept(root):
    return root / "results"


@pytest.fixture(scope="module")
def ledger(kept):
    return {(row.experiment, row.claim): row for row in _ledger.rows(kept)}


def test_every_claim_is_decided(ledger):
    assert [name for name, row in ledger.items() if row.verdict == _ledger.NOT_RUN] == []


@pytest.mark.parametrize(("name", "seeds"), SEEDS.items())
def test_the_questions_of_the_lab_have_all_their_seeds(kept, name, seeds):
    evidence = _runner.evidence(name, registry.load(name), preset="paper", out=kept)
    assert len(evidence.seeds) == seeds


def test_figure_6_is_that_of_the_authors(ledger):
    shape = ledger["fig6", "dip_and_bounce"].finding.numbers
    assert 1.45 <= shape["lowest"] <= 1.70 and 1500 <= shape["at step"] <= 3200
    assert shape["bounce"] >= 0.08
    assert ledger["fig6", "validation"].verdict == "holds"


def test_they_are_small(kept):
    assert sum(path.stat().st_size for path in kept.rglob("*.parquet")) < LARGEST

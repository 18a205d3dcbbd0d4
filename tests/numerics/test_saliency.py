"""Saliency of tokens, exactly on finite data, and its use in predictions that become records."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joma.records import arrow
from joma.theory import flow, invariants, predictions, saliency

# The same sums in another order.
EXACT = 1e-12


def data(seed, samples, tokens, hidden=None):
    """Signals, token frequencies of samples, probabilities of samples."""
    rng = np.random.default_rng(seed)
    g = rng.standard_normal(samples if hidden is None else (samples, hidden))
    return g, rng.dirichlet(np.ones(tokens), samples), rng.dirichlet(np.ones(samples))


@given(
    seed=st.integers(0, 2**32 - 1),
    samples=st.integers(1, 8),
    tokens=st.integers(1, 8),
    hidden=st.none() | st.integers(1, 4),
    weighted=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_saliency_is_discriminancy_times_cooccurrence(seed, samples, tokens, hidden, weighted):
    g, x, weights = data(seed, samples, tokens, hidden)
    weights = weights if weighted else None
    product = saliency.discriminancy(g, x, weights).T * saliency.cooccurrence(x, weights)
    np.testing.assert_allclose(saliency.saliency(g, x, weights), product.T, atol=EXACT)


def test_discriminancy_is_the_posterior_mean():
    """Enumerated by hand: two sentences, each drawn half the time."""
    g, x = np.array([1.0, -2.0]), np.array([[0.75, 0.25, 0.0], [0.25, 0.75, 0.0]])
    np.testing.assert_allclose(saliency.cooccurrence(x), [0.5, 0.5, 0.0])
    given_token = saliency.discriminancy(g, x)
    np.testing.assert_allclose(given_token[:2], [0.75 - 0.5, 0.25 - 1.5])
    assert np.isnan(given_token[2]), "a token that never occurs has no conditional mean"
    np.testing.assert_allclose(saliency.saliency(g, x)[2], 0.0)


def test_footnote_1_as_printed_is_not_the_saliency():
    """E31."""
    g, x, weights = data(0, 5, 4)
    printed = saliency.saliency(g, x, weights, form="printed")
    assert np.abs(printed - saliency.saliency(g, x, weights)).max() > 0.05


def test_saliency_drives_the_linear_layer():
    """Eqn. 3 with its 1/A (E3): at zero weights v moves along saliency times attention."""
    g, x, weights = data(3, 6, 5, hidden=2)
    layer = flow.Layer(x=x, signal=flow.stationary(g), normaliser=1.7, weights=weights)
    z = np.linspace(-0.5, 0.5, 5)
    v_dot = layer.context(flow.velocity(layer, np.zeros((6, 2)), z)[0])
    expected = saliency.saliency(g, x, weights) * np.exp(z)[:, None] / 1.7
    np.testing.assert_allclose(v_dot, expected, atol=EXACT)


def test_stationary_signals_keep_their_saliency_and_cross_entropy_does_not():
    g, x, weights = data(4, 6, 5, hidden=3)
    for signal, still in (
        (flow.stationary(g), True),
        (flow.cross_entropy(np.arange(6) % 3, 3), False),
    ):
        layer = flow.Layer(x=x, signal=signal, weights=weights)
        run = flow.integrate(layer, np.zeros((6, 3)), np.zeros(5), np.linspace(0.0, 1.0, 4))
        moved = saliency.stationarity(saliency.along(layer, run))
        assert moved[0] == 0
        assert (moved[-1] < EXACT) if still else (moved[-1] > 0.01)
    assert np.isnan(saliency.stationarity(np.zeros((2, 3)))).all()


def test_predicted_curves_become_records():
    g, x, weights = data(5, 6, 5, hidden=2)
    layer = flow.Layer(x=x, signal=flow.stationary(g), weights=weights)
    times = np.linspace(0.0, 0.5, 6)
    run = flow.integrate(layer, np.zeros((6, 2)), np.zeros(5), times)
    z = invariants.predicted_logits(run.v)
    np.testing.assert_allclose(z, run.z, atol=1e-9)
    tables = predictions.records("toy", times, run.v, z, layer=0)
    rows = [record for table in tables for record in arrow.rows(table)]
    assert {record.kind for record in rows} == {"predicted"}
    by_metric = {}
    for record in rows:
        by_metric.setdefault(record.reading.metric, []).append(record.reading)
    assert set(by_metric) == {"attention_entropy", "stable_rank", "max_attention_logit"}
    assert by_metric["attention_entropy"][0].value == pytest.approx(np.log(5))
    assert by_metric["stable_rank"][0].status == "zero matrix"
    assert by_metric["stable_rank"][-1].value == pytest.approx(
        np.linalg.norm(run.v[-1]) ** 2 / np.linalg.norm(run.v[-1], 2) ** 2
    )
    assert by_metric["max_attention_logit"][-1].value == pytest.approx(run.z[-1].max())
    assert {r.layer for readings in by_metric.values() for r in readings} == {0}

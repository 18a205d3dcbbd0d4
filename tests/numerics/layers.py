"""Small layers to train, shared by the tests of Theorem 1."""

import numpy as np

from joma.theory import flow, invariants


def figure2_frequencies(seed=0):
    """The smooth data of Figure 2: 20 classes, 10 tokens that change slowly with the class."""
    x = np.random.default_rng(seed).random((20, 20)) / 2
    token, label = np.mgrid[:10, :20]
    x[:10] = np.exp(-((token - label / 2) ** 2) / 30)
    return (x / x.sum(0)).T


def figure2(activation="gelu", **options):
    """Data of Figure 2, one sample per class, cross-entropy on the nodes; A = .1 unless given."""
    rng = np.random.default_rng(7)
    layer = flow.Layer(
        x=figure2_frequencies(),
        signal=flow.cross_entropy(np.arange(20), 20),
        activation=activation,
        **{"normaliser": 0.1} | options,
    )
    return layer, rng.standard_normal((21, 20)) / 100, rng.standard_normal(20) / 100


def random_problem(seed, samples, tokens, hidden, queries=None, **options):
    rng = np.random.default_rng(seed)
    layer = flow.Layer(
        x=rng.random((samples, tokens)),
        signal=flow.cross_entropy(rng.integers(0, hidden, samples), hidden),
        query=None if queries is None else np.arange(samples) % queries,
        **options,
    )
    W = 0.3 * rng.standard_normal((layer.embeddings[0].shape[0], hidden))
    z = 1 + 0.3 * rng.standard_normal(tokens if queries is None else (queries, tokens))
    return layer, W, z


def drifted(run, **options):
    """How far the invariant of a single-query run ends from where it began."""
    c = invariants.conserved(run.z[[0, -1]], run.v[[0, -1]], **options)
    return np.linalg.norm(c[1] - c[0])


def relative_drift(run, **options):
    return drifted(run, **options) / np.linalg.norm(run.z[-1] - run.z[0])

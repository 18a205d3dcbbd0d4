"""Almost orthogonal embeddings: the bounds against random vectors."""

import numpy as np
import pytest

from joma.theory import embeddings

M, EPS = 1000, 0.3


def largest(embed, rng):
    return embeddings.cosines(embeddings.random_unit_vectors(M, embed, rng)).max()


def test_sufficient_dimension_suffices(rng):
    embed = int(np.ceil(embeddings.sufficient_dimension(M, EPS)))
    assert embed == 615
    assert largest(embed, rng) < 0.75 * EPS


def test_sufficient_dimension_with_log10_is_too_small(rng):
    """E33: in 266 dimensions one draw in four fails, where one in a million was promised."""
    embed = int(embeddings.sufficient_dimension(M, EPS, form="printed"))
    assert embed == 266
    failures = sum(largest(embed, rng) > EPS for _ in range(12))
    assert 1 <= failures <= 7
    assert embeddings.collision_bound(M, embed, EPS) == 1


def test_half_the_sufficient_dimension_usually_does(rng):
    assert largest(int(np.ceil(embeddings.union_bound_dimension(M, EPS))), rng) < EPS


def test_bound_is_sure_at_one_dimension_and_small_at_the_other():
    assert embeddings.collision_bound(M, 307, EPS) == 1
    assert embeddings.collision_bound(M, 308, EPS) < 1
    assert embeddings.collision_bound(M, 615, EPS) <= M**-2
    assert embeddings.collision_bound(M, 614, EPS) > M**-2


def test_bound_holds_for_random_vectors(rng):
    tokens, embed, trials = 10, 60, 400
    eps = 0.45
    failures = np.mean(
        [
            embeddings.cosines(embeddings.random_unit_vectors(tokens, embed, rng)).max() > eps
            for _ in range(trials)
        ]
    )
    assert 0 < failures < embeddings.collision_bound(tokens, embed, eps) < 1


def test_typical_cosines_are_typical(rng):
    cosines = embeddings.cosines(embeddings.random_unit_vectors(M, 400, rng))
    assert len(cosines) == M * (M - 1) // 2
    # The mean over half a million pairs has a standard error of 0.1 %; 1/(4d) is smaller still.
    assert cosines.mean() == pytest.approx(embeddings.mean_cosine(400), rel=0.005)
    assert 0.85 < cosines.max() / embeddings.typical_largest_cosine(M, 400) < 1.0


def test_welch_bound_is_attained_by_a_simplex():
    corners = np.eye(6) - 1 / 6  # six unit directions in five dimensions
    np.testing.assert_allclose(embeddings.cosines(corners), embeddings.welch_bound(6, 5))


def test_welch_bound_holds_and_vanishes_where_orthogonality_is_possible(rng):
    cosines = embeddings.cosines(embeddings.random_unit_vectors(50, 5, rng))
    assert cosines.max() > embeddings.welch_bound(50, 5) > 0
    assert embeddings.welch_bound(5, 5) == 0

"""The certificate of block Lanczos: what is proved about eigenvalues that were not seen."""

import numpy as np
import pytest
import torch

from joma.metrics._certificate import Projection, overlap_floor

# Float64 throughout; sums of a few hundred terms.
EXACT = 1e-9


def run_of(tridiagonal, coupling):
    """A run with the given recurrence, as seen from its Ritz values."""
    width = len(coupling)
    ritz, vectors = np.linalg.eigh(tridiagonal)
    parts = ritz, vectors[:width], coupling @ vectors[-width:]
    return Projection(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


def overlap(tridiagonal, coupling, level):
    """The function f of the certificate, by its definition, in the norm that is bounded."""
    width = len(coupling)
    resolvent = np.linalg.inv(level * np.eye(len(tridiagonal)) - tridiagonal)
    return np.linalg.norm(resolvent[:width, -width:] @ coupling.T)


def recurrence(rng, width, blocks):
    size = width * blocks
    tridiagonal = np.zeros((size, size))
    for at in range(0, size, width):
        here = slice(at, at + width)
        diagonal = rng.standard_normal((width, width))
        tridiagonal[here, here] = diagonal + diagonal.T
        if at:
            before = slice(at - width, at)
            tridiagonal[here, before] = triangle(rng, width)
            tridiagonal[before, here] = tridiagonal[here, before].T
    return tridiagonal, triangle(rng, width)


def triangle(rng, width):
    """Upper triangular with rows of very different size, where the overlap is least monotone."""
    return np.triu(rng.standard_normal((width, width))) * 10.0 ** -rng.uniform(0, 3, (width, 1))


def test_overlap_is_not_monotone_for_two_columns():
    """It vanishes at 7, exactly, and rises again: a check at one level proves nothing above it."""
    tridiagonal = np.zeros((4, 4))
    tridiagonal[2:, 2:] = np.diag([2.0, 1.0])
    tridiagonal[2:, 0] = tridiagonal[0, 2:] = 0.5, -0.6
    coupling = np.array([[1.0, 1.0], [0.0, 0.0]])
    assert np.linalg.eigvalsh(tridiagonal)[-1] < 2.2
    assert overlap(tridiagonal, coupling, 7.0) == pytest.approx(0.0, abs=EXACT)
    assert overlap(tridiagonal, coupling, 10.0) > 4e-4

    run = run_of(tridiagonal, coupling)
    assert run.supremum(7.0, 100.0) >= overlap(tridiagonal, coupling, 10.0)
    seen, _ = run.blindness(7.0, 100.0, 0.0, 0, 1e-4)
    assert seen > 1.0  # a point check at 7 would have certified


@pytest.mark.parametrize("width", [1, 2, 4])
def test_supremum_encloses_the_overlap_on_a_fine_grid(rng, width):
    for _ in range(60):
        tridiagonal, coupling = recurrence(rng, width, int(rng.integers(1, 6)))
        ritz = np.linalg.eigvalsh(tridiagonal)
        spread = np.ptp(ritz) + 1.0
        level, ceiling = ritz[-1] + 10.0 ** rng.uniform(-4, 0) * spread, ritz[-1] + 100 * spread
        grid = np.geomspace(level - ritz[-1], ceiling - ritz[-1], 300) + ritz[-1]
        values = np.array([overlap(tridiagonal, coupling, each) for each in grid])
        bound = run_of(tridiagonal, coupling).supremum(level, ceiling)
        assert values.max() <= bound * (1 + EXACT)
        if width == 1:  # then the bound is the value at the level, and nothing is lost
            assert bound == pytest.approx(values[0], rel=EXACT, abs=EXACT)


@pytest.mark.parametrize("kept", [0, 3])
def test_random_columns_overlap_as_often_as_stated(rng, kept):
    cols, fresh, failure, trials = 40, 4, 0.1, 4000
    floor = overlap_floor(cols, fresh, kept, failure)
    # The worst case: half of the vector lies in the span of the kept columns.
    x = np.zeros(cols)
    x[[0, -1]] = (0.5, 0.75**0.5) if kept else (0.0, 1.0)
    fixed = np.broadcast_to(np.eye(cols, kept), (trials, cols, kept))
    start = np.concatenate([fixed, rng.standard_normal((trials, cols, fresh))], axis=2)
    q, _ = np.linalg.qr(start)
    seen = np.linalg.norm(np.einsum("tcf,c->tf", q[:, :, kept:], x), axis=1)
    blind = (seen < floor).mean()
    assert blind == pytest.approx(failure, abs=3 * (failure * (1 - failure) / trials) ** 0.5)


def test_invariant_start_leaves_nothing_unseen():
    """No coupling to further blocks: the start spans an invariant subspace, and the rest is 0."""
    run = run_of(np.diag([1.0, 2.0, 3.0, 4.0]), np.zeros((4, 4)))
    assert run.blindness(4.1, 10.0, 0.0, 0, 1e-4) == (0.0, 0.0)


def test_level_below_the_ritz_values_proves_nothing():
    run = run_of(np.diag([1.0, 2.0, 3.0, 4.0]), np.zeros((4, 4)))
    assert run.blindness(4.0, 10.0, 0.0, 0, 1e-4)[0] == np.inf


def test_level_above_the_frobenius_norm_is_proved_by_it():
    run = run_of(np.diag([1.0, 2.0, 3.0, 4.0]), np.eye(4))
    assert run.blindness(10.0, 10.0, 1.0, 0, 1e-4) == (0.0, 0.0)

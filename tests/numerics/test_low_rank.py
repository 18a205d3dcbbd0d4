"""Several hidden nodes: the closed form against the flow, and the slow fall of the stable rank."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from joma.theory import linear, low_rank

A = 1.3
# An ODE solved to 1e-12 and an exact formula.
RTOL, ATOL = 1e-9, 1e-11


@pytest.fixture
def delta(rng):
    return rng.standard_normal((8, 5))


def flow(delta, times, v0, z0, temperature=1.0, kappa=1.0):
    """Eqn. 2 for one token per sample, `z` on its own: knows no invariant."""
    shape, size = delta.shape, delta.size

    def rates(_, state):
        v, z = state[:size].reshape(shape), state[size:]
        dv = np.exp(z / temperature)[:, None] * delta / A
        return np.concatenate([dv.ravel(), kappa / temperature * (dv * v).sum(1)])

    start = np.concatenate([v0.ravel(), z0])
    path = solve_ivp(
        rates, (0, times[-1]), start, "DOP853", t_eval=times, rtol=1e-12, atol=1e-13
    ).y.T
    return path[:, :size].reshape(-1, *shape), path[:, size:]


def test_solution_from_rest_matches_the_flow(delta):
    times = np.linspace(0.0, 0.95, 6) * low_rank.blowup_time(delta, normaliser=A)
    v, _ = flow(delta, times, np.zeros((8, 5)), np.zeros(8))
    exact = low_rank.solution(times, delta, normaliser=A)
    np.testing.assert_allclose(exact, v, rtol=RTOL, atol=ATOL)


def test_solution_from_anywhere_matches_the_flow(delta, rng):
    v0, c = 0.3 * rng.standard_normal((8, 5)), 0.1 * rng.standard_normal(8)
    setting = {"normaliser": A, "temperature": 0.8, "kappa": 1.7, "v0": v0, "c": c}
    z0 = c + 1.7 / (2 * 0.8) * (v0**2).sum(1)
    times = np.linspace(0.0, 0.9, 5) * low_rank.blowup_time(delta, **setting)
    v, _ = flow(delta, times, v0, z0, temperature=0.8, kappa=1.7)
    exact = low_rank.solution(times, delta, **setting)
    np.testing.assert_allclose(exact, v, rtol=RTOL, atol=ATOL)


def test_dynamics_as_printed_is_rejected_by_the_flow(delta):
    """The slide sums exponentials over the hidden nodes; the exponents must be summed (E12)."""
    times = np.linspace(0.0, 0.6, 4) * low_rank.blowup_time(delta, normaliser=A)
    v, z = flow(delta, times, np.zeros((8, 5)), np.zeros(8))
    speed = np.exp(z)[..., None] * delta / A
    np.testing.assert_allclose(low_rank.velocity(v, delta, normaliser=A), speed, rtol=RTOL)
    printed = low_rank.velocity(v, delta, normaliser=A, form="printed")
    np.testing.assert_allclose(printed[0], 5 * speed[0], rtol=RTOL)  # K times too fast at V = 0
    assert np.abs(printed - speed).max() > 5


def test_one_hidden_node_is_theorem_2():
    delta, t = np.array([1.0, -0.6, 0.0]), np.array([0.3, 0.9])
    one = low_rank.solution(t, delta[:, None], v0=0.2, c=0.1)
    np.testing.assert_allclose(
        one[..., 0], linear.solution(t, delta, v0=0.2, c=0.1), rtol=1e-14, atol=1e-16
    )


def test_rank_stays_that_of_the_saliency(rng):
    delta = rng.standard_normal((8, 2)) @ rng.standard_normal((2, 5))
    eps = np.array([0.9, 1e-4, 1e-30])
    assert np.linalg.matrix_rank(low_rank.near_blowup(eps, delta)).tolist() == [2, 2, 2]


def test_stable_rank_rises_before_it_falls(delta):
    """E23: 2.375 at the start, 2.464 at .776 T*, 1.863 at .97 T*."""
    t = np.array([1e-6, 0.776, 0.97]) * low_rank.blowup_time(delta)
    ranks = low_rank.stable_rank(low_rank.solution(t, delta))
    np.testing.assert_allclose(ranks, [2.3746, 2.4636, 1.8633], atol=1e-4)


def test_weights_reach_rank_one_logarithmically_and_velocity_fast(delta):
    v = low_rank.near_blowup(np.array([1e-2, 1e-16, 1e-250]), delta)
    np.testing.assert_allclose(low_rank.stable_rank(v), [1.6605, 1.0684, 1.0041], atol=1e-4)
    speed = low_rank.stable_rank(low_rank.velocity_direction(v, delta))
    np.testing.assert_allclose(speed, [1.008567, 1.0, 1.0], atol=1e-6)


def test_velocity_direction_is_the_velocity_up_to_a_factor(delta, rng):
    v, c = rng.standard_normal((3, 8, 5)), rng.standard_normal(8)
    setting = {"temperature": 0.9, "kappa": 2.0, "c": c}
    factor = low_rank.velocity(v, delta, **setting) / low_rank.velocity_direction(
        v, delta, **setting
    )
    np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1, :1], v.shape), rtol=1e-12)


def test_rows_without_saliency_stay(delta):
    delta[2] = 0.0
    v = low_rank.solution(np.array([0.5]) * low_rank.blowup_time(delta), delta, v0=0.1)
    assert (v[0, 2] == 0.1).all()


def test_stable_rank_of_nothing_is_undefined():
    assert np.isnan(low_rank.stable_rank(np.zeros((1, 3, 2))))


def test_rejects_the_end_of_time(delta):
    with pytest.raises(ValueError, match="before the winner diverges"):
        low_rank.solution(np.array([low_rank.blowup_time(delta)]), delta)
    with pytest.raises(ValueError, match=r"must lie in \(0, 1\]"):
        low_rank.near_blowup(np.array([0.0]), delta)

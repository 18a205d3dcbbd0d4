"""Theorem 1 on trained layers: all three measures, because each alone can be fooled."""

import math

import numpy as np
import pytest
import torch

from joma._core.errors import JomaError
from joma.metrics.invariant import invariant_residual, path_residual
from joma.theory import flow, invariants

# DOP853 at rtol 1e-11 over a few time units.
FLOW = 1e-9


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array))


def ends(run):
    v = tensor(run.v)
    return tensor(run.z[-1]), v[-1], tensor(run.z[0]), v[0]


def problem(rng, **options):
    layer = flow.Layer(
        x=rng.random((8, 5)),
        signal=flow.cross_entropy(rng.integers(0, 4, 8), 4),
        activation="gelu",
        **options,
    )
    return layer, 0.3 * rng.standard_normal((6, 4)), 1 + 0.3 * rng.standard_normal(5)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("attention", ["linear", "exp"])
def test_the_flow_leaves_no_residual(rng, attention, sign):
    layer, W, z = problem(rng, attention=attention, temperature=0.8)
    run = flow.integrate(layer, W, sign * z, np.array([0.0, 2.0]), kappa=1.5)
    found = invariant_residual(*ends(run), attention=attention, kappa=1.5, temperature=0.8)
    assert found.relative_error < FLOW
    assert found.slope == pytest.approx(1, abs=FLOW)
    assert found.correlation == pytest.approx(1, abs=FLOW)


def test_sgd_leaves_a_residual_in_proportion_to_its_step(rng):
    layer, W, z = problem(rng)
    runs = [flow.descend(layer, W, z, np.full(n, 1.0 / n)) for n in (100, 200)]
    coarse, fine = (invariant_residual(*ends(run)).relative_error for run in runs)
    assert 1.9 < coarse / fine < 2.1


def test_correlation_does_not_see_a_wrong_learning_rate_ratio_and_slope_does(rng):
    layer, W, z = problem(rng)
    run = flow.integrate(layer, W, z, np.array([0.0, 2.0]), kappa=3.0)
    found = invariant_residual(*ends(run))
    assert found.correlation > 1 - FLOW
    assert found.slope == pytest.approx(3, abs=FLOW)
    assert found.relative_error == pytest.approx(2 / 3, abs=FLOW)


@pytest.fixture(scope="module")
def figure2():
    """The smooth data of Figure 2, softmax attention, linear activation: 2000 steps of SGD."""
    x = np.random.default_rng(0).random((20, 20)) / 2
    token, label = np.mgrid[:10, :20]
    x[:10] = np.exp(-((token - label / 2) ** 2) / 30)
    layer = flow.Layer(
        x=(x / x.sum(0)).T,
        signal=flow.cross_entropy(np.arange(20), 20),
        attention="softmax",
        temperature=0.5,
    )
    rng = np.random.default_rng(0)
    W, z = rng.standard_normal((21, 20)) / 100, rng.standard_normal(20) / 100
    run = flow.descend(layer, W, z, np.full(2000, 0.1))
    return run, np.stack([flow.mean_scores(layer, z) for z in run.z])


def test_softmax_keeps_the_direction_and_loses_the_amplitude(figure2):
    """E15: nearly perfect correlation, nine times too large."""
    run, mean = figure2
    found = invariant_residual(
        *ends(run), attention="softmax", temperature=0.5, mean_attention=tensor(mean[0])
    )
    assert found.correlation > 0.98
    assert found.slope < 0.2
    assert found.relative_error > 4


def test_the_path_integral_restores_the_amplitude(figure2):
    run, mean = figure2
    found = path_residual(tensor(run.z), tensor(run.v), tensor(mean), temperature=0.5)
    assert found.correlation > 0.95
    assert 0.8 < found.slope < 1
    assert found.relative_error < 0.35


def test_agrees_with_theory_on_the_same_numbers(rng):
    z, z0, mean = rng.standard_normal((3, 6))
    v, v0 = rng.standard_normal((2, 6, 3))
    c = invariants.conserved(z0, v0, attention="softmax", mean_attention=mean)
    expected = invariants.agreement(
        z, z0, invariants.predicted_logits(v, c, attention="softmax", mean_attention=mean)
    )
    given = [tensor(part) for part in (z, v, z0, v0)]
    found = invariant_residual(*given, attention="softmax", mean_attention=tensor(mean))
    assert found == expected


def test_trained_single_precision_parameters_are_measured_without_a_graph(rng):
    layer, W, z = problem(rng)
    run = flow.integrate(layer, W, z, np.array([0.0, 2.0]))
    single = [part.float().requires_grad_() for part in ends(run)]
    assert invariant_residual(*single).relative_error < 1e-5  # what float32 leaves of a difference


def test_without_movement_there_is_nothing_to_agree_with():
    z, v = torch.arange(3.0), torch.ones(3, 2)
    assert all(math.isnan(part) for part in invariant_residual(z, v, z, v))


def test_refuses_what_theorem_1_does_not_cover():
    z, v = torch.ones(3), torch.ones(3, 2)
    with pytest.raises(JomaError, match="needs mean_attention"):
        invariant_residual(z, v, z, v, attention="softmax")
    with pytest.raises(JomaError, match="linear, exp and softmax; got 'sigmoid'"):
        invariant_residual(z, v, z, v, attention="sigmoid")

"""Losses send back the signal that the theory speaks of."""

import numpy as np
import pytest
import torch

from joma._core.errors import JomaError
from joma.models import objectives
from joma.models.layer import Layer, LayerConfig
from joma.models.tower import Tower
from joma.theory import flow

# float64, a few terms of order one.
TOLERANCE = 1e-12


@pytest.fixture
def h():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 4, dtype=torch.float64, generator=generator, requires_grad=True)


LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2])
SHARES = torch.tensor([0.1, 0.2, 0.05, 0.25, 0.1, 0.2, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("shares", [None, SHARES])
def test_cross_entropy_sends_back_the_signal_of_the_flow(h, shares):
    g = objectives.signal(objectives.cross_entropy(h, LABELS, shares), h, shares)
    expected = flow.cross_entropy(LABELS.numpy(), 4)(h.detach().numpy())
    np.testing.assert_allclose(g.numpy(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("shares", [None, SHARES])
def test_the_stationary_objective_sends_back_exactly_its_g(h, shares):
    fixed = torch.from_numpy(np.random.default_rng(0).standard_normal((7, 4)))
    g = objectives.signal(objectives.stationary(h, fixed, shares), h, shares)
    torch.testing.assert_close(g, fixed, rtol=0, atol=TOLERANCE)


def test_node_objectives_sum_to_equation_9_and_weights_see_only_their_own():
    layer = Layer(LayerConfig(tokens=5, hidden=3, attention="exp", init_w=1.0))
    rng = np.random.default_rng(0)
    x, g = torch.from_numpy(rng.random((8, 5))), torch.from_numpy(rng.standard_normal((8, 3)))
    terms = objectives.node_objectives(layer(x), g)
    torch.testing.assert_close(-terms.sum(), objectives.stationary(layer(x), g))
    W, z = torch.autograd.grad(terms[1], (layer.W, layer.z))
    assert bool((W[:, [0, 2]] == 0).all()) and bool((W[:, 1] != 0).any())
    assert bool((z != 0).all())


def tower(**options):
    configs = [
        LayerConfig(tokens=6, hidden=5, attention="exp", activation="relu", init_w=0.5),
        LayerConfig(tokens=5, hidden=4, attention="exp", activation="gelu", init_w=0.5),
    ]
    return Tower(configs, classes=3, **options)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(10, 6, dtype=torch.float64, generator=generator)
    return x, torch.arange(10) % 3


def test_freezing_the_signal_of_an_upper_layer_keeps_the_gradient_of_now(data):
    """Assumption 1 differs from joint training only in what comes later."""
    model, (x, labels) = tower(), data
    first = model.levels[0]
    seen = model.outputs(x)
    loss = objectives.cross_entropy(seen[-1], labels)
    joint = torch.autograd.grad(loss, (first.W, first.z), retain_graph=True)
    g = objectives.signal(loss, seen[0])
    alone = torch.autograd.grad(objectives.stationary(seen[0], g), (first.W, first.z))
    for a, b in zip(joint, alone, strict=True):
        assert float(a.abs().max()) > 1e-3
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("level", [0, 1, 2, None])
def test_only_the_chosen_level_is_trained(data, level):
    model, (x, labels) = tower(), data
    model.train_only(level)
    before = [{n: p.detach().clone() for n, p in m.named_parameters()} for m in model.levels]
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = objectives.cross_entropy(model(x), labels)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for number, (member, old) in enumerate(zip(model.levels, before, strict=True)):
        for name, parameter in member.named_parameters():
            assert torch.equal(parameter, old[name]) is (level not in (None, number))


def test_an_upper_layer_does_not_break_the_sgd_identity(data):
    model, (x, labels) = tower(), data
    first = model.levels[0]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    start, z0, variation = first.v.detach(), first.z.detach().clone(), 0.0
    old = start
    for _ in range(100):
        optimiser.zero_grad()
        objectives.cross_entropy(model(x), labels).backward()
        optimiser.step()
        new = first.v.detach()
        variation, old = variation + (new - old).square().sum(1), new
    # T = .5, so the sums count 1 / 2T = 1 times
    moved = (first.z.detach() - old.square().sum(1)) - (z0 - start.square().sum(1))
    torch.testing.assert_close(moved, -variation, rtol=0, atol=TOLERANCE)


def test_a_softmax_over_nodes_that_are_all_off_is_undefined():
    layer = Layer(LayerConfig(tokens=3, hidden=2, attention="softmax"))
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert layer(x).isnan().all(1).tolist() == [True, False]


def test_towers_that_do_not_fit_are_refused():
    with pytest.raises(JomaError, match="one token per node of the layer below, 20; got tokens=3"):
        Tower([LayerConfig(), LayerConfig(tokens=3)])
    with pytest.raises(JomaError, match="at least one layer"):
        Tower([])
    with pytest.raises(JomaError, match="set queries=1"):
        Tower([LayerConfig(queries=2)])
    with pytest.raises(JomaError, match=r"level must lie in \[0, 3\); got 3"):
        tower().train_only(3)


def test_a_tower_draws_nothing_from_the_global_state():
    before = torch.get_rng_state()
    first, again = tower(seed=4), tower(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])

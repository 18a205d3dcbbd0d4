"""The hand-written gradients of the one-node experiment against autograd, and its bookkeeping."""

import math

import pytest
import torch

from joma.experiments import _neuron
from joma.experiments._neuron import Data, Node, Schedule
from joma.experiments.neuron import (
    BALANCED,
    EXPERIMENT,
    FAR,
    LINEAR_NODE,
    POINT,
    RELU,
    RELU_NODE,
    arm,
)
from joma.models.layer import Layer, LayerConfig
from joma.models.objectives import stationary

EXACT = 1e-12  # both sides in float64; sums are taken in another order
SHORT = Schedule(steps=40, batch=64, every=1)
SEED = 3


def entropy_by_autograd(data: Data, node: Node, schedule: Schedule) -> list[float]:
    """The layer of Eqn. 1 with one node; its bias is the component of the weights along u_q."""
    layer = Layer(
        LayerConfig(
            tokens=_neuron.TOKENS,
            hidden=1,
            attention="exp",
            temperature=1.0,
            activation=node.activation,
            init_z=0.0,
        )
    )
    with torch.no_grad():
        layer.W.copy_(torch.cat([_neuron.start(SEED), torch.tensor([node.bias])])[:, None])
    if not node.trained:
        keep = torch.ones_like(layer.W)
        keep[-1] = 0
        layer.W.register_hook(lambda grad: grad * keep)
    optimiser = torch.optim.SGD(
        [{"params": [layer.W], "weight_decay": node.decay}, {"params": [layer.z]}],
        lr=schedule.rate,
    )
    draws = _neuron.batches([data], SEED, schedule.batch)
    found = [math.log(_neuron.TOKENS)]
    for _ in range(schedule.steps):
        x, g = next(draws)
        optimiser.zero_grad()
        stationary(layer(x[0]), g[0][:, None]).backward()
        optimiser.step()
        found.append(torch.distributions.Categorical(logits=layer.z.detach()).entropy().item())
    return found


@pytest.mark.parametrize(
    "node",
    [
        Node(activation="linear"),
        Node(activation="relu", bias=0.5),
        Node(activation="relu", bias=0.5, trained=True),
        Node(activation="relu", bias=0.5, trained=True, decay=0.1),
        Node(activation="linear", decay=0.1),
    ],
)
def test_training_is_gradient_ascent_of_the_layer(node):
    data, fast = Data(2.5, 0.5), Schedule(steps=18, batch=64, every=1, rate=0.1)
    trained = _neuron.train([data], [node], fast, SEED)
    expected = torch.tensor(entropy_by_autograd(data, node, fast), dtype=torch.float64)
    assert expected[-1] < expected[0] - 0.01  # it did move
    torch.testing.assert_close(trained.entropy[0, 0], expected, rtol=0, atol=EXACT)


def test_a_cell_does_not_depend_on_the_rest_of_the_map():
    other = Node(activation="relu", bias=5.0, trained=True)
    alone = _neuron.train([POINT], [RELU_NODE], SHORT, SEED)
    among = _neuron.train([FAR, POINT, BALANCED], [other, RELU_NODE, LINEAR_NODE], SHORT, SEED)
    torch.testing.assert_close(among.entropy[1, 1], alone.entropy[0, 0], rtol=0, atol=EXACT)


def test_distance_of_the_clusters_is_what_the_data_say():
    x, g = next(_neuron.batches([POINT, FAR], SEED, 20_000))
    for rows, signal, data in zip(x, g, (POINT, FAR), strict=True):
        between = rows[signal > 0].mean(0) - rows[signal < 0].mean(0)
        error = 3 * math.sqrt(_neuron.TOKENS / (20_000 * data.positive))  # three deviations
        assert abs(between.norm() - data.separation) < error
        assert abs((signal > 0).double().mean() - data.positive) < 0.01


def test_a_node_that_blows_up_stays_where_it_was():
    schedule = Schedule(steps=400, batch=64)
    trained = _neuron.train([FAR], [LINEAR_NODE, RELU_NODE], schedule, SEED)
    taken = int(trained.taken[0, 0])
    assert 0 < taken < schedule.steps
    assert trained.entropy.isfinite().all()
    after = trained.entropy[0, 0, trained.steps >= taken]
    assert len(after) > 1 and (after == after[-1]).all()


def test_weights_start_from_another_stream_than_the_data():
    data = torch.Generator().manual_seed(SEED)
    assert not torch.equal(
        _neuron.start(SEED),
        _neuron.INIT * torch.randn(_neuron.TOKENS, generator=data, dtype=torch.float64),
    )
    assert not torch.equal(_neuron.start(0), _neuron.start(1))


def test_every_preset_contains_the_cells_that_claims_name():
    from_zero = Node(activation="relu", bias=0.0, trained=True)
    from_high = Node(activation="relu", bias=RELU_NODE.bias, trained=True)
    for config in EXPERIMENT.presets.values():
        assert {POINT, BALANCED, FAR} <= set(config.data())
        assert {LINEAR_NODE, RELU_NODE, from_zero, from_high} <= set(config.nodes())
        names = [arm(d, n) for d in config.data() for n in config.nodes()]
        assert len(set(names)) == len(names)
    assert RELU == "relu-x1-p0.2-bias60-frozen-decay0"

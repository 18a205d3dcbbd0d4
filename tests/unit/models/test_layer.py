"""The torch layer is the layer of `joma.theory.flow`, in its outputs, gradients and training."""

import numpy as np
import pytest
import torch

from joma._core.errors import JomaError, UnknownNameError
from joma.models import objectives
from joma.models.layer import Layer, LayerConfig
from joma.theory import flow, invariants

# float64 sums of at most 21 terms of order one, in another order than NumPy's.
TOLERANCE = 1e-12

TOKENS, HIDDEN, SAMPLES = 6, 4, 9


def problem(queries=1, **options):
    """A layer of ours and its twin, at the same random point, with data and a fixed signal."""
    rng = np.random.default_rng(1)
    config = LayerConfig(tokens=TOKENS, hidden=HIDDEN, queries=queries, **options)
    layer = Layer(config, seed=3)
    with torch.no_grad():
        layer.W.copy_(torch.from_numpy(0.5 * rng.standard_normal(layer.W.shape)))
        if config.logits == "free":
            layer.z.copy_(torch.from_numpy(1 + 0.5 * rng.standard_normal(layer.z.shape)))
    x = rng.random((SAMPLES, TOKENS))
    query = None if queries == 1 else np.arange(SAMPLES) % queries
    g = rng.standard_normal((SAMPLES, HIDDEN))
    twin = flow.Layer(
        x=x,
        signal=flow.stationary(g),
        attention=config.attention,
        activation=config.activation,
        temperature=config.temperature,
        normaliser=config.normaliser,
        residual=config.residual,
        unit_norm=config.norm == "unit",
        U_C=layer.U_C.detach().numpy(),
        u_q=layer.u_q.detach().numpy(),
        query=query,
    )
    given = (torch.from_numpy(x), None if query is None else torch.from_numpy(query))
    return layer, twin, given, torch.from_numpy(g)


def state(layer):
    return layer.W.detach().numpy(), layer.logits().detach().numpy()


def assert_same_pass(layer, twin, given):
    seen, expected = layer.look(*given), flow.forward(twin, *state(layer))
    for name in ("b", "f", "a", "h"):
        ours = getattr(seen, name).detach().numpy()
        np.testing.assert_allclose(ours, getattr(expected, name), rtol=0, atol=TOLERANCE)


def assert_descends_what_the_flow_ascends(layer, twin, given, g):
    objectives.stationary(layer(*given), g).backward()
    rates = flow.gradient(twin, dict(zip(("W", "z"), state(layer), strict=True)))
    for name, rate in rates.items():
        ours = -getattr(layer, name).grad.numpy()
        np.testing.assert_allclose(ours, rate, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("norm", ["none", "unit"])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("activation", ["linear", "relu", "leaky", "gelu", "silu", "tanh"])
@pytest.mark.parametrize("attention", ["linear", "exp", "softmax"])
def test_outputs_and_gradients_are_those_of_the_flow(attention, activation, residual, norm):
    options = {"attention": attention, "activation": activation, "residual": residual}
    layer, twin, given, g = problem(**options, norm=norm, normaliser=0.7)
    assert_same_pass(layer, twin, given)
    assert_descends_what_the_flow_ascends(layer, twin, given, g)


@pytest.mark.parametrize("attention", ["linear", "exp", "softmax"])
@pytest.mark.parametrize("embeddings", ["one-hot", "orthonormal", "random"])
def test_several_queries_have_a_row_of_logits_each(attention, embeddings):
    options = {"attention": attention, "embeddings": embeddings, "embed": 15}
    layer, twin, given, g = problem(queries=3, activation="gelu", **options)
    assert layer.z.shape == (3, TOKENS)
    assert_same_pass(layer, twin, given)
    assert_descends_what_the_flow_ascends(layer, twin, given, g)


@pytest.mark.parametrize("queries", [1, 3])
def test_learned_embeddings_move_as_in_the_flow(queries):
    layer, twin, given, g = problem(queries, learned=True, attention="exp", activation="tanh")
    objectives.stationary(layer(*given), g).backward()
    W, z = state(layer)
    u_q = layer.u_q.detach().numpy()
    rates = flow.gradient(twin, {"W": W, "z": z, "U_C": twin.U_C, "u_q": u_q})
    assert {name for name, _ in layer.named_parameters()} == rates.keys()
    for name, rate in rates.items():
        ours = -getattr(layer, name).grad.numpy()
        np.testing.assert_allclose(ours, rate, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("queries", [1, 3])
def test_projected_logits_are_the_bilinear_form_of_section_2(queries):
    layer, twin, given, g = problem(
        queries, logits="projected", attention="exp", init_qk=0.5, embeddings="orthonormal"
    )
    assert_same_pass(layer, twin, given)
    W_Q, W_K = layer.W_Q.detach().numpy(), layer.W_K.detach().numpy()
    u_q = twin.u_q.reshape(-1, queries)
    z = np.einsum("em,he,hd,dl->ml", u_q, W_Q, W_K, twin.U_C)
    expected = state(layer)[1].reshape(queries, -1)
    np.testing.assert_allclose(z, expected, rtol=0, atol=TOLERANCE)
    objectives.stationary(layer(*given), g).backward()
    pull = flow.velocity(twin, *state(layer))[1].reshape(queries, -1)
    by_hand = np.einsum("ml,he,em,dl->hd", pull, W_Q, u_q, twin.U_C)
    np.testing.assert_allclose(-layer.W_K.grad.numpy(), by_hand, rtol=0, atol=TOLERANCE)


def test_layer_norm_takes_the_mean_out_and_leaves_length_root_of_width():
    layer, _, given, _ = problem(norm="layer", attention="exp")
    f = layer.look(*given).f
    torch.testing.assert_close(f.mean(1), torch.zeros(SAMPLES, dtype=f.dtype))
    # eps of torch's layer norm is 1e-5, next to a variance of about .1
    torch.testing.assert_close(f.square().mean(1), torch.ones_like(f[:, 0]), rtol=1e-3, atol=0)


@pytest.mark.parametrize("minibatch", [SAMPLES, 2])
@pytest.mark.parametrize("activation", ["linear", "relu", "gelu"])
def test_sgd_moves_the_invariant_by_half_the_quadratic_variation(activation, minibatch):
    """The exact identity of discrete SGD with exp attention, for any temperature and kappa."""
    kappa, temperature = 0.5, 0.8
    layer, _, (x, _), _ = problem(
        attention="exp", activation=activation, temperature=temperature, embeddings="orthonormal"
    )
    labels = torch.arange(SAMPLES) % HIDDEN
    rates = [{"params": [layer.W], "lr": 0.1}, {"params": [layer.z], "lr": 0.1 * kappa}]
    optimiser = torch.optim.SGD(rates)
    generator = torch.Generator().manual_seed(0)
    v, z = [layer.v.detach()], [layer.z.detach().clone()]
    for _ in range(200):
        rows = torch.randperm(SAMPLES, generator=generator)[:minibatch]
        optimiser.zero_grad()
        objectives.cross_entropy(layer(x[rows]), labels[rows]).backward()
        optimiser.step()
        v.append(layer.v.detach())
        z.append(layer.z.detach().clone())
    path = torch.stack(v)
    scale = kappa / (2 * temperature)
    moved = (z[-1] - scale * path[-1].square().sum(1)) - (z[0] - scale * path[0].square().sum(1))
    variation = path.diff(dim=0).square().sum((0, 2))
    assert float(variation.min()) > 1e-3
    torch.testing.assert_close(moved, -scale * variation, rtol=0, atol=TOLERANCE)


def test_training_is_the_descent_of_the_judge():
    layer, twin, (x, _), g = problem(attention="softmax", activation="gelu")
    W0, z0 = (part.copy() for part in state(layer))
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(50):
        optimiser.zero_grad()
        objectives.stationary(layer(x), g).backward()
        optimiser.step()
    run = flow.descend(twin, W0, z0, np.full(50, 0.1))
    for ours, theirs in zip(state(layer), (run.W[-1], run.z[-1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


def test_linear_attention_conserves_its_invariant_up_to_the_step_size():
    drifts = []
    for lr in (0.02, 0.01):
        layer, _, (x, _), g = problem(attention="linear", activation="tanh", temperature=1.0)
        optimiser = torch.optim.SGD(layer.parameters(), lr=lr)
        path = []
        for step in range(round(2 / lr) + 1):
            if step:
                optimiser.zero_grad()
                objectives.stationary(layer(x), g).backward()
                optimiser.step()
            path.append((layer.z.detach().clone().numpy(), layer.v.detach().numpy()))
        z, v = (np.stack([path[0][i], path[-1][i]]) for i in (0, 1))
        c = invariants.conserved(z, v, attention="linear")
        drifts.append(np.linalg.norm(c[1] - c[0]))
    assert drifts[0] / drifts[1] == pytest.approx(2, rel=0.05)  # halving the step halves it


@pytest.mark.parametrize("embeddings", ["one-hot", "orthonormal", "random"])
def test_embeddings_are_unit_vectors_and_orthonormal_where_they_say_so(embeddings):
    layer = Layer(LayerConfig(embeddings=embeddings, embed=40), seed=1)
    U = torch.cat([layer.U_C, layer.u_q], 1)
    gram = U.T @ U
    off = (gram - torch.eye(21, dtype=gram.dtype)).abs()
    assert float(off.diagonal().max()) < TOLERANCE
    assert (float(off.max()) < TOLERANCE) is (embeddings != "random")
    assert {name for name, _ in layer.named_buffers()} == {"U_C", "u_q"}


def test_one_seed_gives_one_layer_and_the_global_state_is_left_alone():
    before = torch.get_rng_state()
    config = LayerConfig(embeddings="random", logits="projected")
    first, again, other = Layer(config, 5), Layer(config, 5), Layer(config, 6)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert not torch.equal(value, other.state_dict()[name])


def test_a_float32_layer_starts_where_its_float64_twin_does():
    config = LayerConfig(embeddings="orthonormal")
    low, high = Layer(config, 2, torch.float32), Layer(config, 2)
    assert torch.equal(low.W, high.W.float())
    assert low(torch.ones(1, 20)).dtype == torch.float32


def test_an_activation_of_your_own_passes_through():
    layer, twin, given, _ = problem(activation="square")
    mine, *_ = problem(activation="linear")
    mine.phi = Layer(LayerConfig(activation=lambda a: a * a)).phi
    torch.testing.assert_close(mine(*given), layer(*given))
    assert_same_pass(layer, twin, given)


def test_wrong_requests_are_refused_with_what_to_do():
    with pytest.raises(JomaError, match=r"need embed >= 21; got 20"):
        Layer(LayerConfig(embed=20))
    with pytest.raises(UnknownNameError, match=r"No activation named 'rleu'\. Available: linear"):
        Layer(LayerConfig(activation="rleu"))
    with pytest.raises(JomaError, match="it has 2 and none was given"):
        Layer(LayerConfig(queries=2))(torch.ones(1, 20, dtype=torch.float64))

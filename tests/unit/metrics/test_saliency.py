"""Saliency measured as a stream is the saliency of the theory."""

import numpy as np
import pytest
import torch

from joma.metrics.saliency import (
    context_frequencies,
    prefix_frequencies,
    saliency,
    saliency_sums,
)
from joma.probes.sums import combine
from joma.theory import flow, saliency as theory

# The same sums in another order, in float64.
EXACT = 1e-12


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def problem(generator, samples=60):
    context = torch.randint(0, 9, (samples, 12), generator=generator)
    query = torch.randint(20, 24, (samples,), generator=generator)
    signal = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return signal, context_frequencies(context, torch.arange(9)), query


QUERIES = torch.tensor([21, 23, 20])


def test_agrees_with_theory(generator):
    signal, x, query = problem(generator)
    found = saliency(saliency_sums(signal, x, query, QUERIES))
    for i, m in enumerate(QUERIES):
        g, f = signal[query == m].numpy(), x[query == m].numpy()
        for ours, exact in (
            (found.saliency, theory.saliency(g, f)),
            (found.discriminancy, theory.discriminancy(g, f)),
            (found.cooccurrence, theory.cooccurrence(f)),
        ):
            np.testing.assert_allclose(ours[i].numpy(), exact, rtol=EXACT, atol=EXACT)
        assert found.samples[i] == len(g)


def test_batches_add_up(generator):
    data = problem(generator)
    whole = saliency(saliency_sums(*data, QUERIES))
    first, second = (saliency_sums(*(part[s::2] for part in data), QUERIES) for s in (0, 1))
    for one, other in zip(saliency(combine(first, second)), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def test_saliency_is_discriminancy_times_cooccurrence(generator):
    found = saliency(saliency_sums(*problem(generator), QUERIES))
    product = found.discriminancy * found.cooccurrence[..., None]
    torch.testing.assert_close(product, found.saliency, rtol=EXACT, atol=EXACT)


def test_it_is_the_velocity_of_the_weights_under_uniform_attention(rng):
    """Eqn. 2 at z = 0, linear activation: every v_k starts to move along its saliency."""
    x, labels = rng.random((8, 5)), rng.integers(0, 4, 8)
    layer = flow.Layer(x=x, signal=flow.cross_entropy(labels, 4))
    W, z = rng.standard_normal((6, 4)), np.zeros(5)
    hidden = torch.tensor(flow.forward(layer, W, z).h, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(hidden, torch.from_numpy(labels))
    (gradient,) = torch.autograd.grad(loss, hidden)
    query = torch.zeros(8, dtype=torch.int64)
    sums = saliency_sums(-8 * gradient, torch.from_numpy(x), query, query[:1])
    v_dot = layer.context(flow.velocity(layer, W, z)[0])
    np.testing.assert_allclose(saliency(sums).saliency[0].numpy(), v_dot, rtol=EXACT, atol=EXACT)


def test_every_prefix_is_a_context(generator):
    ids = torch.randint(0, 6, (3, 10), generator=generator)
    tokens = torch.tensor([4, 0, 5])
    found = prefix_frequencies(ids, tokens)
    assert found.shape == (3, 9, 3)
    for t in range(1, 10):
        torch.testing.assert_close(
            found[:, t - 1], context_frequencies(ids[:, :t], tokens), rtol=EXACT, atol=EXACT
        )


def test_padding_is_no_context():
    context = torch.tensor([[1, 1, 2, 0], [0, 0, 0, 0]])
    found = context_frequencies(context, torch.tensor([1, 2]), padding=0)
    torch.testing.assert_close(found[0], torch.tensor([2 / 3, 1 / 3]).double())
    assert found[1].isnan().all()


def test_what_never_occurred_is_undefined(generator):
    signal, x, query = problem(generator)
    x[:, 4] = 0
    found = saliency(saliency_sums(signal, x, query, torch.tensor([20, 99])))
    assert found.discriminancy[0, 4].isnan().all() and (found.saliency[0, 4] == 0).all()
    assert found.saliency[1].isnan().all() and found.cooccurrence[1].isnan().all()
    assert found.samples.tolist()[1] == 0


def test_single_precision_signals_are_summed_in_double(generator):
    signal, x, query = problem(generator)
    sums = saliency_sums(signal.float().requires_grad_(), x.float(), query, QUERIES)
    assert {entry.dtype for entry in sums.values()} == {torch.float64}
    assert not any(entry.requires_grad for entry in sums.values())

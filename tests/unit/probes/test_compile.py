"""Under torch.compile the observer is part of the graph: no break, one graph on and one off."""

import subprocess
import sys
import textwrap

import pytest
import torch

from joma.probes.observe import observe
from unit.probes.zoo import DenseEntropy, batch, build

pytestmark = [
    pytest.mark.hf,
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # dynamo's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch, while it traces
]


@pytest.fixture
def counted():
    """A backend that counts its compilations."""
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield CompileCounterWithBackend("eager"), counters["graph_break"]
    torch._dynamo.reset()


def step(model, tokens):
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_two_compilations_over_a_hundred_switches(implementation, counted):
    backend, breaks = counted
    model = build("llama", implementation).train()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    tokens = batch("llama")["input_ids"]
    seen = observe(compiled, [DenseEntropy()])
    losses = set()
    for _ in range(50):
        losses.add(step(compiled, tokens).item())
        with seen:
            losses.add(step(compiled, tokens).item())
    assert len(losses) == 1
    assert backend.frame_count <= 2
    assert not breaks
    assert not seen.plan().separate
    with observe(model, [DenseEntropy()]) as eager, torch.compiler.set_stance("force_eager"):
        step(model, tokens)
    found, expected = ([r.value for r in o.streamed()] for o in (seen, eager))
    assert found == pytest.approx(expected, abs=1e-6)


def test_blocks_compiled_one_by_one_share_one_graph(counted):
    backend, _ = counted
    model = build("llama")
    for layer in model.model.layers:
        layer.compile(fullgraph=True, backend=backend)
    tokens = batch("llama")["input_ids"]
    seen = observe(model, [DenseEntropy()])
    for _ in range(3):
        step(model, tokens)
        with seen:
            step(model, tokens)
    assert backend.frame_count <= 2
    assert {r.layer for r in seen.streamed()} == {0, 1}


def test_checkpointed_layers_of_a_compiled_model_are_seen_once(counted):
    backend, breaks = counted
    model = build("llama", use_cache=False).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    tokens = batch("llama")["input_ids"]
    with observe(compiled, [DenseEntropy()]) as seen:
        step(compiled, tokens)
    rows = {float(sums["rows"][0]) for sums in seen._sums.values()}
    assert rows == {float(tokens.numel())}
    assert not breaks


def test_tap_is_not_there_in_a_compiled_region():
    # In a process of its own: runtime shape checks of the test run would break the graph.
    code = """
    import torch
    from joma.probes.tap import tap

    @torch.compile(fullgraph=True, backend="eager")
    def kernel(q):
        tap(q, q, causal=True)
        return q * 2

    q = torch.ones(1, 1, 2, 4)
    assert torch.equal(kernel(q), q * 2)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.slow
def test_inductor_keeps_losses_and_gradients_bit_identical():
    torch._dynamo.reset()
    model = build("llama").train()
    compiled = torch.compile(model, fullgraph=True)
    tokens = batch("llama")["input_ids"]
    results = []
    seen = observe(compiled, [DenseEntropy()])
    for observed in (False, True, False, True):
        if observed:
            with seen:
                loss = step(compiled, tokens)
        else:
            loss = step(compiled, tokens)
        results.append([loss, *(p.grad.clone() for p in model.parameters())])
    assert all(all(map(torch.equal, results[0], other)) for other in results[1:])
    assert len(list(seen.streamed())) == 8

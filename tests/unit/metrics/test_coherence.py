"""Coherence: exact in tiles, honest about subsets, beside the floor of random directions."""

import math

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from joma.metrics import coherence as module, embedding_coherence
from joma.metrics.coherence import MlpCoherenceProbe, coherence, random_coherence
from joma.probes.base import Place
from joma.records.schema import Bound
from joma.theory import embeddings

# The same cosines, added up in another order, in float64.
EXACT = 1e-12
# In float32 a mean of cosines keeps about seven digits.
SINGLE = 1e-6


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


class Largest(TorchFunctionMode):
    """The largest tensor that is made while it watches."""

    numel = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.Tensor):
            self.numel = max(self.numel, result.numel())
        return result


def test_agrees_with_the_definition(generator, monkeypatch):
    monkeypatch.setattr(module, "TILE", 64)
    vectors = torch.randn(300, 17, generator=generator, dtype=torch.float64)
    found = coherence(vectors)
    assert found.value == pytest.approx(embeddings.cosines(vectors.numpy()).mean(), rel=EXACT)
    assert found.lower == found.value == found.upper
    assert (found.vectors, found.excluded) == (300, 0)


def test_all_pairs_are_never_held_at_once(generator, monkeypatch):
    monkeypatch.setattr(module, "TILE", 50)
    vectors = torch.randn(800, 16, generator=generator)
    with Largest() as watch:
        coherence(vectors)
    assert 0 < watch.numel <= vectors.numel() < 800**2 / 40


@pytest.mark.parametrize("embed", [1, 2, 3, 4, 1000])
def test_floor_is_the_mean_over_the_sphere(embed):
    known = {1: 1.0, 2: 2 / math.pi, 3: 0.5, 4: 4 / (3 * math.pi)}
    asymptotic = embeddings.mean_cosine(embed)
    expected = known.get(embed, asymptotic * (1 + 1 / (4 * embed)))
    assert random_coherence(embed) == pytest.approx(expected, rel=1e-7)
    assert random_coherence(embed) > asymptotic


def test_random_vectors_lie_on_the_floor(generator):
    found = coherence(torch.randn(1000, 64, generator=generator))
    assert found.value == pytest.approx(found.floor, rel=0.01)


def test_orthogonal_and_parallel_vectors_are_the_ends(generator):
    assert coherence(torch.eye(50)).value == 0
    parallel = torch.randn(500, 1, generator=generator) * torch.randn(1, 30, generator=generator)
    assert 1 - SINGLE < coherence(parallel).value <= 1


def test_vectors_without_direction_are_left_out_and_counted(generator):
    vectors = torch.randn(40, 8, generator=generator)
    padded = torch.cat([torch.zeros(3, 8), vectors, torch.zeros(60, 8)])
    found = coherence(padded)
    assert found.value == pytest.approx(coherence(vectors).value, rel=SINGLE)
    assert (found.vectors, found.excluded) == (40, 63)
    assert coherence(padded, limit=40).lower == found.value, "nothing was left to chance"


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_lengths_do_not_matter(generator, scale):
    vectors = torch.randn(40, 8, generator=generator)
    sizes = scale * torch.rand(40, 1, generator=generator)
    assert coherence(sizes * vectors).value == pytest.approx(coherence(vectors).value, rel=SINGLE)


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_subsets_keep_their_promise(generator, common):
    """95 % intervals of 200 subsets; with and without a direction that some vectors share."""
    vectors = torch.randn(1000, 24, generator=generator)
    share = torch.rand(1000, 1, generator=generator) * torch.randn(24, generator=generator)
    vectors += 2 * common * share
    truth = coherence(vectors).value
    found = [coherence(vectors, limit=300, seed=seed) for seed in range(200)]
    assert np.mean([f.lower <= truth <= f.upper for f in found]) >= 0.93
    assert all(f.vectors == 300 for f in found)
    assert np.mean([f.upper - f.lower for f in found]) < 0.15 * truth, "and say something"


def test_the_subset_stays_the_same_while_the_vectors_move(generator):
    vectors = torch.randn(500, 16, generator=generator)
    moved = vectors + 1e-4 * torch.randn(500, 16, generator=generator)
    before, after = (coherence(v, limit=50).value for v in (vectors, moved))
    elsewhere = coherence(vectors, limit=50, seed=1).value
    assert abs(after - before) < 1e-4 < abs(elsewhere - before)


def test_undefined_is_nan_and_says_why(generator):
    vectors = torch.randn(50, 8, generator=generator)
    vectors[49, 3] = torch.nan  # counts even if the subset misses it
    cases = {
        "not finite": (vectors, torch.full((50, 8), torch.inf)),
        "fewer than two nonzero vectors": (torch.zeros(5, 8), torch.eye(8)[:1], torch.ones(0, 8)),
    }
    for status, examples in cases.items():
        for example in examples:
            weight = {"weight": example}
            readings, _ = embedding_coherence.EmbeddingCoherenceProbe(limit=10).measure(
                Place(), weight
            )
            assert math.isnan(readings[0].value) and readings[0].status == status
            assert math.isfinite(readings[1].value)


def test_the_mlp_probe_compares_columns(generator):
    weight = torch.randn(8, 30, generator=generator)
    weight[:, 4] = 0
    readings, warm = MlpCoherenceProbe().measure(Place(layer=5), {"weight": weight})
    value, floor, excluded = readings
    assert [r.metric for r in readings] == [
        "mlp_coherence",
        "mlp_coherence_floor",
        "mlp_coherence_excluded",
    ]
    assert value.value == pytest.approx(coherence(weight.T.contiguous()).value, rel=SINGLE)
    assert (value.bound, floor.value, excluded.value) == (Bound.NONE, random_coherence(8), 1)
    assert warm is None and all(r.layer == 5 for r in readings)


def test_a_subset_is_reported_with_its_interval(generator):
    weight = {"weight": torch.randn(200, 8, generator=generator)}
    whole, part = (
        embedding_coherence.EmbeddingCoherenceProbe(limit=n).measure(Place(), weight)[0][0]
        for n in (None, 50)
    )
    assert (whole.bound, part.bound) == (Bound.NONE, Bound.CI95)
    assert part.lower < part.value < part.upper
    assert part.metric == "embedding_coherence"

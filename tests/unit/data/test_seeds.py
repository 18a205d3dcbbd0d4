"""Every sampler is a pure function of its config and its seed."""

import pytest
import torch

from joma.data import hblt, hblt_fixed, mixtures, tokens

SAMPLERS = {
    "tokens": lambda seed: [tokens.frequencies(tokens.TokenClasses(), seed)],
    "random tokens": lambda seed: [tokens.frequencies(tokens.TokenClasses(kind="random"), seed)],
    "tree": lambda seed: hblt.sample(hblt.NoisyTree.even(0.8, levels=4), 50, seed).latents,
    "fixed": lambda seed: [hblt_fixed.sequences(hblt_fixed.FixedHierarchy(), seed).sequences],
    "centres": lambda seed: [torch.tensor(mixtures.pair(seed).centres)],
    "normals": lambda seed: mixtures.sample(mixtures.pair(0), 50, seed),
    "mixture": lambda seed: mixtures.sample(mixtures.pair(0, scatter=mixtures.HEAVY), 50, seed),
    "t": lambda seed: mixtures.sample(mixtures.pair(0, scatter=mixtures.StudentT(3)), 50, seed),
}


@pytest.fixture(params=SAMPLERS)
def sampler(request):
    return SAMPLERS[request.param]


def same(first, second) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_one_seed_gives_one_data_set(sampler):
    assert same(sampler(3), sampler(3))


def test_another_seed_gives_another(sampler):
    assert not same(sampler(3), sampler(4))


def test_a_seed_is_a_fresh_generator_and_a_generator_moves_on(sampler):
    generator = torch.Generator().manual_seed(3)
    assert same(sampler(generator), sampler(3))
    assert not same(sampler(generator), sampler(3))


def test_the_global_generator_is_left_alone(sampler):
    before = torch.get_rng_state()
    sampler(3)
    assert torch.equal(torch.get_rng_state(), before)

"""Normalised correlation: one pass, any order, large means; and no best match without its null."""

import numpy as np
import pytest
import torch

from joma.metrics._null import exceedance, null_match
from joma.metrics.coherence import random_coherence
from joma.metrics.correlation import (
    Correlation,
    CorrelationProbe,
    best_match,
    held_out_match,
    normalized_correlation,
    shuffled_scores,
)
from joma.probes.base import HiddenCall, Place
from joma.probes.sums import combine

# Two ways to the same sums in float64.
EXACT = 1e-12
# float32 sums of a chunk about its mean; kernels.md measured 9e-7 with a mean of 1000.
SINGLE = 1e-6


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def problem(generator, samples=600, hidden=12, latents=5, dtype=torch.float64):
    """Binary latents, each written into one unit with noise."""
    on = torch.rand(samples, latents, generator=generator) < 0.4
    units = torch.randn(samples, hidden, generator=generator, dtype=dtype)
    units[:, :latents] += on
    return units, on


def reference(units, latents):
    both = np.corrcoef(units.double().numpy(), latents.double().numpy(), rowvar=False)
    return torch.from_numpy(both[: units.shape[1], units.shape[1] :])


# --- moments -----------------------------------------------------------------------------------


def test_agrees_with_numpy(generator):
    units, latents = problem(generator)
    difference = normalized_correlation(units, latents) - reference(units, latents)
    assert difference.abs().max() < EXACT


def test_a_large_mean_costs_no_digits(generator):
    """Naive float32 moments of the same numbers are worthless."""
    units, latents = problem(generator, 20_000, 60, dtype=torch.float32)
    units += 1e3
    truth = reference(units, latents)
    assert (normalized_correlation(units, latents) - truth).abs().max() < SINGLE

    y = latents.float()
    mixed = units.T @ y / len(y) - units.mean(0)[:, None] * y.mean(0)
    spread = (units * units).mean(0) - units.mean(0) ** 2
    naive = mixed / spread[:, None].sqrt() / (y * y).mean(0).sub(y.mean(0) ** 2).sqrt()
    assert not (naive - truth).abs().max() < 1e4 * SINGLE


def test_batches_far_apart_merge_without_loss(generator):
    """The mean moves by a thousand spreads between batches, so no single shift fits."""
    units, latents = problem(generator, 9_000, dtype=torch.float32)
    units[3_000:6_000] += 1e3
    units[6_000:] -= 1e3
    first, *rest = zip(units.split(3_000), latents.split(3_000), strict=True)
    moments = Correlation.of(*first)
    for part in rest:
        moments = moments.update(*part)
    assert (moments.matrix() - reference(units, latents)).abs().max() < SINGLE


def test_batches_merge_in_any_order(generator):
    units, latents = problem(generator)
    sizes = [1, 7, 92, 500]
    parts = [Correlation.of(*p) for p in zip(units.split(sizes), latents.split(sizes), strict=True)]
    forward = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3])
    backward = parts[3].merge(parts[2]).merge(parts[1].merge(parts[0]))
    for merged in (forward, backward):
        assert merged.count == 600
        assert (merged.matrix() - reference(units, latents)).abs().max() < EXACT


def test_what_never_varies_has_no_correlation(generator):
    for dtype in (torch.float32, torch.float64):
        units, latents = problem(generator, dtype=dtype)
        units[:, 3], latents[:, 1] = 0.1, True
        once = Correlation.of(units, latents)
        halves = [Correlation.of(units[s], latents[s]) for s in (slice(100), slice(100, None))]
        added = Correlation.from_sums(combine(*(half.sums() for half in halves)))
        for moments in (once, halves[0].merge(halves[1]), added):
            matrix = moments.matrix()
            assert matrix[3].isnan().all() and matrix[:, 1].isnan().all()
            assert matrix.isnan().sum() == 5 + 12 - 1


def test_added_sums_are_the_moments_of_the_whole(generator):
    units, latents = problem(generator)
    units += 30
    sums = combine(*(Correlation.of(units[s::2], latents[s::2]).sums() for s in (0, 1)))
    added = Correlation.from_sums(sums).matrix()
    assert (added - reference(units, latents)).abs().max() < 1e3 * EXACT  # (mean/spread)² of them


def test_half_precision_is_measured_as_what_it_stores(generator):
    units, latents = problem(generator)
    half = units.bfloat16()
    assert torch.equal(
        normalized_correlation(half, latents), normalized_correlation(half.float(), latents)
    )


def test_scale_and_shift_of_a_unit_do_not_matter(generator):
    units, latents = problem(generator)
    same = normalized_correlation(1e-8 * units + 1e-9, latents)
    assert (same - normalized_correlation(units, latents)).abs().max() < EXACT


def test_activations_with_a_graph_are_measured_without_it(generator):
    units, latents = problem(generator)
    assert not normalized_correlation(units.requires_grad_(), latents).requires_grad


def test_rejects_an_empty_batch():
    with pytest.raises(ValueError, match="at least one row"):
        Correlation.of(torch.ones(0, 2), torch.ones(0, 3))


# --- the null ----------------------------------------------------------------------------------


def test_noise_scores_what_table_1_has_to_beat():
    """400 hidden units on 20 or 50 classes: .63 and .41, with nothing to be found."""
    assert null_match(400, 20).mean == pytest.approx(0.626, abs=5e-4)
    assert null_match(400, 50).mean == pytest.approx(0.411, abs=5e-4)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize(("hidden", "samples"), [(1, 5), (30, 20), (200, 40)])
def test_the_null_is_what_random_units_give(generator, hidden, samples, absolute):
    """Binary latents, as the null does not depend on them. 2000 draws; 4 standard errors."""
    latents = torch.arange(samples)[:, None] < samples // 3
    draws = torch.randn(samples, 2000 * hidden, generator=generator)
    corr = normalized_correlation(draws, latents)[:, 0].reshape(2000, hidden)
    best = (corr.abs() if absolute else corr).amax(1)
    null = null_match(hidden, samples, absolute=absolute)
    assert best.mean().item() == pytest.approx(null.mean, abs=4 * best.std().item() / 2000**0.5)
    assert (best > null.upper).double().mean().item() == pytest.approx(0.05, abs=0.02)
    p = exceedance(best.numpy(), hidden, samples, absolute=absolute)
    assert p.mean() == pytest.approx(0.5, abs=4 * 12**-0.5 / 2000**0.5)


@pytest.mark.parametrize("samples", [3, 4, 20, 1000, 10**6])
def test_one_random_unit_is_a_random_direction(samples):
    """Centring leaves one dimension less than there are samples; at 3 the density has poles."""
    tolerance = 1e-4 if samples == 3 else 1e-9
    null = null_match(1, samples, absolute=True)
    assert null.mean == pytest.approx(random_coherence(samples - 1), rel=tolerance)
    assert abs(null_match(1, samples).mean) < 1e-9


def test_exceedance_is_accurate_far_out():
    p = exceedance(np.array([-1.0, 0.9, 0.999, 1.0]), 400, 50)
    assert p[0] == 1 and 0 < p[2] < 1e-50 < p[1] < 1e-12 and p[3] == 0
    assert exceedance(np.array([-0.5, 0.0]), 4, 50, absolute=True).tolist() == [1, 1]


def test_two_samples_have_no_null():
    with pytest.raises(ValueError, match="more than 2 samples; got 4 units and 2 samples"):
        null_match(4, 2)


# --- best match --------------------------------------------------------------------------------


def test_planted_units_are_found_and_are_no_accident(generator):
    match = best_match(normalized_correlation(*problem(generator)), 600)
    assert match.unit.tolist() == [0, 1, 2, 3, 4]
    assert match.p_value.max() < 1e-6
    assert match.null < match.null_upper < match.score


def test_random_units_do_not_beat_their_null(generator):
    units = torch.randn(20, 400, generator=generator)
    latents = torch.rand(20, 300, generator=generator) < 0.5
    match = best_match(normalized_correlation(units, latents), 20)
    assert match.score == pytest.approx(match.null, abs=0.02)
    assert (match.p_value < 0.05).double().mean() < 0.1


def test_a_sign_counts_unless_it_is_told_not_to(generator):
    units, latents = problem(generator, hidden=5)
    corr = normalized_correlation(-units, latents)
    assert best_match(corr, 600).value.max() < 0.2
    assert best_match(corr, 600, absolute=True).unit.tolist() == [0, 1, 2, 3, 4]


def test_latents_that_never_vary_are_left_out_of_the_score(generator):
    units, latents = problem(generator)
    score = best_match(normalized_correlation(units, latents), 600).value[1:].mean().item()
    latents[:, 0] = False
    match = best_match(normalized_correlation(units, latents), 600)
    assert match.unit[0] == -1 and match.value[0].isnan() and match.p_value[0].isnan()
    assert match.score == pytest.approx(score)


def test_units_that_never_vary_do_not_compete(generator):
    units, latents = problem(generator)
    padded = torch.cat([units, torch.zeros(600, 1000, dtype=units.dtype)], 1)
    match = best_match(normalized_correlation(padded, latents), 600)
    assert match.null == null_match(12, 600).mean


def test_choosing_on_one_half_and_scoring_on_the_other_takes_the_bias_out(generator):
    units, latents = problem(generator, 400, 300, 200)
    noise = torch.randn(400, 300, generator=generator)
    for values, low, high in ((noise, -0.03, 0.03), (units, 0.35, 0.5)):
        halves = [Correlation.of(values[s::2], latents[s::2]) for s in (0, 1)]
        score = held_out_match(*halves).mean()
        assert low < score < high
        assert low < held_out_match(*halves, absolute=True).mean() < high
    assert best_match(normalized_correlation(noise, latents), 400).score > 0.12


def test_a_held_out_match_keeps_the_sign_it_was_chosen_with(generator):
    units, latents = problem(generator, hidden=5)
    halves = [Correlation.of(-units[s::2], latents[s::2]) for s in (0, 1)]
    assert held_out_match(*halves, absolute=True).min() > 0.2


def test_a_held_out_latent_that_never_varied_is_undefined(generator):
    units, latents = problem(generator)
    latents[:300, 0] = True
    halves = [Correlation.of(units[s], latents[s]) for s in (slice(300), slice(300, 600))]
    assert held_out_match(*halves).isnan().tolist() == [True, *[False] * 4]
    assert held_out_match(*reversed(halves)).isnan().tolist() == [True, *[False] * 4]


def test_shuffling_agrees_with_the_closed_form_for_gaussian_units(generator):
    units = torch.randn(60, 100, generator=generator)
    latents = torch.rand(60, 50, generator=generator) < 0.5
    scores = shuffled_scores(units, latents)
    assert scores.mean() == pytest.approx(null_match(100, 60).mean, abs=0.02)
    assert torch.equal(scores, shuffled_scores(units, latents))
    assert not torch.equal(scores, shuffled_scores(units, latents, seed=1))


def test_shuffling_sees_what_the_closed_form_does_not(generator):
    """Copies compete as one unit; rare events match rare latents more often than a Gaussian."""
    closed = null_match(100, 200).mean
    few = torch.randn(200, 3, generator=generator).repeat(1, 34)[:, :100]
    rare = (torch.randn(200, 100, generator=generator) - 2.3).relu()
    latents = torch.rand(200, 50, generator=generator) < 0.02
    assert shuffled_scores(few, latents, rounds=5).mean() < 0.6 * closed
    assert shuffled_scores(rare, latents, rounds=5).mean() > 1.3 * closed


# --- the probe ---------------------------------------------------------------------------------


def call(preactivation):
    return HiddenCall(inputs=preactivation, preactivation=preactivation)


def test_probes_of_several_batches_add_up(generator):
    units, latents = problem(generator)
    probes = [CorrelationProbe(latents=part) for part in latents.split(200)]
    seen = zip(probes, units.split(200), strict=True)
    a, b, c = (probe.observe(call(part.reshape(2, 100, 12))) for probe, part in seen)
    readings = list(probes[0].readings(Place(layer=2), combine(combine(a, b), c)))
    match = best_match(normalized_correlation(units, latents), 600)
    assert [r.metric for r in readings] == ["latent_correlation", "latent_correlation_null"]
    assert readings[0].value == pytest.approx(match.score, abs=EXACT)
    assert readings[1].value == match.null
    assert all(r.layer == 2 for r in readings)


def test_a_pool_turns_sequences_into_samples(generator):
    """Table 1: the largest activation over the sequence; 20 classes behind 40 rows."""
    activations = torch.randn(40, 7, 12, generator=generator)
    latents = torch.rand(40, 5, generator=generator) < 0.5
    probe = CorrelationProbe(latents=latents, pool=lambda a: a.relu().amax(1), samples=20)
    score, null = probe.readings(Place(), probe.observe(call(activations)))
    expected = best_match(normalized_correlation(activations.relu().amax(1), latents), 20)
    assert (score.value, null.value) == (pytest.approx(expected.score), expected.null)


def test_without_a_latent_that_varies_the_reading_says_so(generator):
    probe = CorrelationProbe(latents=torch.ones(10, 2))
    sums = probe.observe(call(torch.randn(10, 3, generator=generator)))
    score, _ = probe.readings(Place(), sums)
    assert np.isnan(score.value) and "vary" in score.status

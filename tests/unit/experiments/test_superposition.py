"""Superposition: units that fire for chosen contexts are told apart, and from chance."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from joma.data.text import Window
from joma.experiments import _runner, _superposition as statistic, superposition
from joma.experiments.base import Evidence, Verdict, records
from joma.experiments.superposition import (
    DIRECTIONS,
    LIKENESS,
    PATTERNS,
    RANDOM,
    SAME_NEXT,
    SAME_WORD,
    SUPERPOSED,
    UNITS,
)
from joma.models.language import LanguageConfig, LanguageModel
from joma.records.tables import solid

EXACT = 1e-12  # float64 on both sides
WORDS, SAMPLES = 40, 4000


@pytest.fixture
def word(rng):
    return rng.integers(WORDS, size=SAMPLES)


@pytest.fixture
def vectors():
    """Words 0 to 29 are alike, 3 and 4 most of all; 30 to 39 have nothing in common with them."""
    vectors = np.hstack([np.eye(2)[np.arange(WORDS) // 30], 0.5 * np.eye(WORDS)])
    vectors[3:5, 0] = 2.0
    return vectors


def of_units(activation, word, vectors):
    contexts = statistic.top_contexts(activation, 20)
    return statistic.relatedness(contexts, word, (word + 1) % WORDS, vectors)


def test_a_unit_for_two_unrelated_words_is_superposed_and_others_are_not(rng, word, vectors):
    noise = 0.1 * rng.random(SAMPLES)
    detectors = ([3], [3, 4], [3, 30], [])
    activation = np.stack([np.isin(word, words) + noise for words in detectors], 1)
    found = of_units(activation, word, vectors)
    assert found.superposed.tolist() == [False, False, True, False]
    assert found.patterns[:3].tolist() == [1, 2, 2]


def test_relatedness_of_a_unit_for_one_word_is_1_and_of_chance_is_the_frequency(rng, word, vectors):
    one = of_units((word == 3)[:, None] + 0.1 * rng.random((SAMPLES, 1)), word, vectors)
    for measure in (one.same_word, one.same_next, one.likeness):
        np.testing.assert_allclose(measure, 1.0, atol=EXACT)
    contexts = statistic.random_contexts(SAMPLES, 500, 20, rng)
    chance = statistic.relatedness(contexts, word, word, vectors)
    # 500 units x 190 pairs: the mean share of equal words has a deviation below .001.
    assert abs(chance.same_word.mean() - 1 / WORDS) < 0.005
    assert chance.superposed.mean() < 0.05


def test_likeness_is_the_mean_cosine_over_pairs(rng):
    vectors = rng.standard_normal((6, 3))
    own = np.array([[0, 1, 5, 5]])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [unit[a] @ unit[b] for i, a in enumerate(own[0]) for b in own[0][i + 1 :]]
    found = statistic.relatedness(own, np.arange(6), np.arange(6), vectors)
    np.testing.assert_allclose(found.likeness, np.mean(pairs), atol=EXACT)


def test_the_scale_of_vectors_and_the_order_of_units_do_not_matter(rng, word, vectors):
    activation = rng.standard_normal((SAMPLES, 6)) + (word[:, None] == np.arange(6))
    first = of_units(activation, word, vectors)
    again = of_units(activation[:, ::-1], word, 7 * vectors)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_allclose(a, b[::-1], atol=EXACT)


def test_a_frequent_word_is_no_pattern_where_chance_explains_it():
    own = np.array([1] * 8 + [2] * 3 + list(range(3, 12)))
    share = np.full(20, 0.005)
    share[1] = 0.4
    assert statistic.patterns(own, share).tolist() == [2]


def test_words_with_the_same_neighbours_are_alike():
    text = np.array([0, 1, 2, 0, 3, 2] * 10 + [4, 5] * 10)
    vectors = statistic.neighbourhoods(text, 6)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert unit[1] @ unit[3] == pytest.approx(1.0, abs=EXACT)
    assert unit[1] @ unit[5] == pytest.approx(0.0, abs=EXACT)


def test_too_few_samples_for_the_top_are_refused():
    with pytest.raises(ValueError, match="more than 20 samples; got 20"):
        statistic.top_contexts(np.zeros((20, 2)), 20)


def test_activations_are_those_of_the_lower_matrix_without_unknown_words():
    ids = torch.randint(6, (4, 9), generator=torch.Generator().manual_seed(0))
    one = Window(ids[:, :-1], ids[:, 1:])
    model = LanguageModel(LanguageConfig(vocab=6, embed=8, hidden=5), 0).eval()
    x, h, word, following = superposition.activations(model, (one, one))
    known = (one.inputs != 0) & (one.targets != 0)
    assert len(x) == len(h) == len(word) == 2 * int(known.sum())
    assert 0 not in word and 0 not in following
    lower = model.blocks[0].mlp.lower
    expected = x @ lower.weight.detach().numpy().T + lower.bias.detach().numpy()
    np.testing.assert_allclose(h, expected, atol=1e-5)  # float32


# --- rules ---------------------------------------------------------------------------------------


def evidence(units, directions, random):
    """Records of two steps; values are pairs, untrained and trained, of share and same_next."""
    tables = []
    for arm, pairs in {UNITS: units, DIRECTIONS: directions, RANDOM: random}.items():
        values = dict(zip((SUPERPOSED, SAME_NEXT), pairs, strict=True))
        values |= dict.fromkeys((PATTERNS, SAME_WORD, LIKENESS), (0.0, 0.0))
        tables += [
            records(arm, 0, metric=metric, step=[0, 9], value=list(value))
            for metric, value in values.items()
        ]
    named = [solid(_runner._named("superposition", table)) for table in tables]
    return Evidence(pa.concat_tables(named))


NONE = ((0.0, 0.0), (0.05, 0.05))


@pytest.mark.parametrize(
    ("units", "directions", "unrelated", "learned", "selective"),
    [
        (((0.1, 0.5), (0.06, 0.25)), NONE, Verdict.HOLDS, Verdict.HOLDS, Verdict.HOLDS),
        (
            ((0.5, 0.5), (0.20, 0.25)),
            NONE,
            Verdict.HOLDS,
            Verdict.NOT_DISTINGUISHABLE,
            Verdict.NOT_DISTINGUISHABLE,
        ),
        (
            ((0.0, 0.5), (0.05, 0.25)),
            ((0.0, 0.6), (0.05, 0.25)),
            Verdict.HOLDS,
            Verdict.NOT_DISTINGUISHABLE,
            Verdict.NOT_DISTINGUISHABLE,
        ),
        (((0.0, 0.05), (0.05, 0.06)), NONE, Verdict.FAILS, Verdict.FAILS, Verdict.FAILS),
    ],
)
def test_claims_can_go_either_way(units, directions, unrelated, learned, selective):
    found = evidence(units, directions, NONE)
    assert superposition.beyond_chance(found).verdict == unrelated
    assert superposition.learned(found).verdict == learned
    assert superposition.selective(found).verdict == selective

"""Figure 10 on a suite: sentences from a file, words of any tokeniser, and the rules."""

import importlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from joma import sources
from joma._core.errors import JomaError, MissingDataError
from joma.experiments import _figure, fig10
from joma.experiments._suite import SMALL
from joma.experiments.base import Evidence, Verdict, records
from joma.experiments.superposition import DIRECTIONS, PATTERNS, RANDOM, SUPERPOSED, UNITS

pytest.importorskip("transformers")
pytestmark = pytest.mark.hf

TINY = replace(SMALL, steps=2, every=2)
CONFIG = fig10.Config(suite=TINY, count=60, words=150, looks=2, longest=32)


@pytest.fixture(scope="module")
def suite(shared, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOMA_SHARED", str(shared))
        own = importlib.import_module("joma.experiments._suite_hf")
        folder = tmp_path_factory.mktemp("suite")
        own.written(TINY, 0, folder / "suite", folder / "work")
    return folder / "suite"


@pytest.fixture
def units():
    return importlib.import_module("joma.experiments._suite_units")


def named(tables):
    table = pa.concat_tables(tables).unify_dictionaries()
    field = table.schema.field("run")
    runs = pa.array([f"fig10/{run}" for run in table["run"].to_pylist()])
    return Evidence(table.set_column(0, field, runs.cast(field.type)))


def judged(**arms):
    tables = [
        records(arm, 0, metric=SUPERPOSED, layer=0, step=[0.0, 1.0], value=values)
        for arm, values in arms.items()
    ]
    return named(tables)


def test_it_runs_on_sentences_from_a_file(suite, shared, tmp_path, monkeypatch):
    monkeypatch.setenv("JOMA_SHARED", str(shared))
    file = tmp_path / "sentences.txt"
    file.write_text(
        "the first game was released in the year of the war , and it was the best\n" * 40
    )
    config = replace(CONFIG, source=str(suite), sentences=str(file))
    evidence = named(list(fig10.run(config, 0, tmp_path)))
    for arm in (UNITS, DIRECTIONS, RANDOM):
        for layer in (0, 1):
            for metric in (SUPERPOSED, PATTERNS):
                curve = evidence.part(layer=layer).curve(metric, arm=arm, seed=0)
                assert curve.steps.tolist() == [0.0, 2.0]
    assert len(_figure.panels(fig10.EXPERIMENT, evidence)) == 4


def test_a_missing_file_of_sentences_is_named():
    with pytest.raises(MissingDataError, match=r"nowhere\.txt"):
        fig10.sentences(replace(CONFIG, sentences="nowhere.txt"))


def test_empty_lines_are_no_sentences(tmp_path):
    file = tmp_path / "s.txt"
    file.write_text("one two\n\n  three four  \n")
    found = fig10.sentences(replace(CONFIG, sentences=str(file)))
    assert found == ["one two", "three four"]


def test_units_are_what_the_lower_matrix_puts_out(suite, units):
    source = sources.open(str(suite))
    ids = torch.tensor([5, 7, 9, 11])
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h"
    parts = source.read("step2", [f"{name}.weight", f"{name}.bias"])
    found = {layer: (x, h) for layer, x, h in units.layers(source, "step2", [ids, ids[:2]])}
    x, h = found[1]
    assert len(x) == len(h) == 4  # three positions and one: the last of each has no next word
    expected = torch.from_numpy(x) @ parts[f"{name}.weight"].T + parts[f"{name}.bias"]
    np.testing.assert_allclose(h, expected, atol=1e-5)  # float32, sums of 32


def test_words_are_the_most_frequent_tokens_and_zero(suite, units):
    read = units.read(
        sources.open(str(suite)), "step0", ["the of the of", "x"], "the the the of of and",
        words=3, longest=3,
    )  # fmt: skip
    assert read.background.tolist() == [1, 1, 1, 2, 2, 0]
    assert read.word.tolist() == [1, 2] and read.following.tolist() == [2, 1]


def test_sentences_of_one_token_are_refused(suite, units):
    with pytest.raises(JomaError, match="None of the 1 sentences"):
        units.read(sources.open(str(suite)), "step0", ["the"], "the of", words=3, longest=8)


def test_a_unit_for_two_unlike_words_is_counted_and_noise_is_not(rng):
    samples, words = 2000, 40
    word, following = rng.integers(1, words, (2, samples))
    activation = rng.standard_normal((samples, 8))
    activation[:, 0] += 10 * np.isin(word, (3, 4))
    vectors = np.eye(words) + 0.1
    vectors[3, 4] = vectors[4, 3] = -0.5
    text = SimpleNamespace(word=word, following=following)
    found = fig10.seen(rng.standard_normal((samples, 4)), activation, text, vectors, 8, rng)
    assert found[UNITS, SUPERPOSED] == 1 / 8
    assert found[RANDOM, SUPERPOSED] == 0


@pytest.mark.parametrize(
    ("own", "chance", "verdict"),
    [
        ([0.0, 0.3], [0.0, 0.0], Verdict.HOLDS),
        ([0.0, 0.05], [0.0, 0.0], Verdict.FAILS),
        ([0.0, 0.3], [0.0, 0.25], Verdict.NOT_DISTINGUISHABLE),
    ],
)
def test_units_must_be_above_random_contexts(own, chance, verdict):
    evidence = judged(**{UNITS: own, RANDOM: chance, DIRECTIONS: [0.0, 0.0]})
    assert fig10.unrelated(evidence).verdict is verdict


@pytest.mark.parametrize(
    ("own", "directions", "verdict"),
    [
        ([0.1, 0.3], [0.0, 0.1], Verdict.HOLDS),
        ([0.25, 0.3], [0.0, 0.1], Verdict.NOT_DISTINGUISHABLE),  # the untrained has it
        ([0.1, 0.3], [0.0, 0.3], Verdict.NOT_DISTINGUISHABLE),  # any direction has it
    ],
)
def test_what_is_learned_is_not_there_before_or_in_any_direction(own, directions, verdict):
    evidence = judged(**{UNITS: own, RANDOM: [0.0, 0.0], DIRECTIONS: directions})
    assert fig10.learned(evidence).verdict is verdict

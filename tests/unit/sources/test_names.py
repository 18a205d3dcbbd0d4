"""Every naming of the public suites is parsed and ordered; anything else is reported."""

import math
import random

import pytest

from joma.sources._errors import SourceError
from joma.sources._names import parse, select

# name -> (stage, step, tokens, unit), one or more for each row of the table of suites
SCHEMES = {
    "step1000": (None, 1000, None, "step"),  # Pythia, PolyPythias
    "checkpoint-1000": (None, 1000, None, "step"),  # CRFM GPT-2, Trainer
    "stage1-step150-tokens1B": ("stage1", 150, 10**9, "step"),  # OLMo-2
    "step150-tokens1B": (None, 150, 10**9, "step"),
    "stage2-ingredient1-step3000-tokens13B": ("stage2-ingredient1", 3000, 13 * 10**9, "step"),
    "step20000-tokens84B": (None, 20000, 84 * 10**9, "step"),  # OLMo-1
    "step69369-seed-default": (None, 69369, None, "step"),  # DataDecide
    "ckpt_000": (None, 0, None, "checkpoint"),  # Amber
    "ckpt_359": (None, 359, None, "checkpoint"),
    "stage1-step-40000": ("stage1", 40000, None, "step"),  # SmolLM3
    "step-160000": (None, 160000, None, "step"),  # SmolLM2
    "step-001000-2BT": (None, 1000, 2 * 10**9, "step"),  # FineWeb ablations
    "step-300000": (None, 300000, None, "step"),  # TinyLlama
    "iter-9080000-ckpt": (None, 9080000, None, "iteration"),
    "iter-9080000-ckpt.pth": (None, 9080000, None, "iteration"),
    "global_step5000": (None, 5000, None, "step"),  # BLOOM
    "240b_tokens": (None, None, 240 * 10**9, "tokens"),  # RedPajama-INCITE
    "multiberts-seed_0-step_20k": (None, 20000, None, "step"),  # MultiBERTs
}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_naming_of_a_public_suite_is_understood(name):
    found = parse(name, "run")
    assert (found.stage, found.step, found.tokens, found.unit) == SCHEMES[name]
    assert found.problem is None and math.isfinite(found.at)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("step69369-seed-default", "repo/seed-default"),
        ("step5-seed-large-aux-2", "repo/seed-large-aux-2"),
        ("multiberts-seed_3-step_20k", "repo/multiberts-seed_3"),
        ("step1000", "repo"),
    ],
)
def test_a_seed_in_the_name_is_another_run(name, run):
    assert parse(name, "repo").run == run


@pytest.mark.parametrize(
    "name", ["main", "refs-pr-1", "step", "stepten", "old-step3", "v1.0", "step1-final", "1B-model"]
)
def test_an_unknown_name_is_reported_and_comes_last(name):
    found = select([parse(name), parse("step5")], None)
    assert [r.name for r in found] == ["step5", name]
    assert "states neither a step nor a token count" in found[1].problem
    assert math.isnan(found[1].at)


ORDERED = [
    "step0",
    "stage1-step1",
    "step2",
    "stage1-step10-tokens1B",
    "step512",
    "stage1-step1000",
    "stage2-ingredient1-step5",
    "stage2-ingredient2-step1",
    "stage2-ingredient10-step1",
    "stage10-step0",
    "main",
    "unknown",
]


def test_the_order_is_total_and_does_not_depend_on_the_listing():
    rng = random.Random(0)
    for _ in range(20):
        shuffled = rng.sample(ORDERED, len(ORDERED))
        assert [r.name for r in select(map(parse, shuffled), None)] == ORDERED


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("step*", ["step0", "step2", "step512"]),
        ("512", ["step512"]),
        ("2..512", ["step2", "stage1-step10-tokens1B", "step512", "stage2-ingredient1-step5"]),
        ("..2", [*ORDERED[:3], *ORDERED[7:10]]),
        ("step512..stage2-ingredient1-step9", ORDERED[4:7]),
        ("main,step0", ["step0", "main"]),
    ],
)
def test_revisions_are_chosen_by_glob_step_and_range(which, expected):
    found = [r.name for r in select(map(parse, ORDERED), which)]
    assert found == expected


def test_a_choice_that_matches_nothing_names_what_is_there():
    with pytest.raises(SourceError, match=r"No revision matches 'stop\*'.*Available: step0"):
        select([parse("step0")], "stop*")


def test_a_range_ends_at_steps():
    with pytest.raises(SourceError, match="'abc' cannot end a range"):
        select([parse("step0")], "abc..5")

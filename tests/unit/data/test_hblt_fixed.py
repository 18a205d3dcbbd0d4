from itertools import pairwise

import pytest
import torch

from joma.data.hblt_fixed import FixedHierarchy, sequences

TABLE_1 = [
    FixedHierarchy(classes, children, latents)
    for classes in (20, 30, 50)
    for children in (2, 3)
    for latents in ((10, 20), (20, 30))
]


@pytest.mark.parametrize("config", TABLE_1, ids=str)
def test_every_cell_of_table_1_can_be_drawn(config):
    drawn = sequences(config, 0)
    assert drawn.sequences.shape == (config.classes, 30)
    assert [y.shape[1] for y in drawn.latents] == list(config.latents)


@pytest.mark.parametrize("config", TABLE_1, ids=str)
def test_a_sequence_is_pads_and_then_its_tokens_in_order(config):
    drawn = sequences(config, 1)
    for row, present in zip(drawn.sequences.tolist(), drawn.present, strict=True):
        tokens = present.nonzero().flatten().tolist()
        assert row == [config.pad] * (30 - len(tokens)) + tokens


def test_each_class_has_a_different_set_of_top_latents_of_the_right_size():
    drawn = sequences(FixedHierarchy(classes=50, children=3), 0)
    top = drawn.latents[1]
    assert (top.sum(1) == 3).all() and len(top.unique(dim=0)) == 50


@pytest.mark.parametrize("seed", range(5))
def test_a_latent_brings_the_same_children_in_every_class(seed):
    drawn = sequences(FixedHierarchy(), seed)
    levels = [drawn.present, *drawn.latents]
    for below, above in pairwise(levels):
        for latent in above.T[above.any(0)]:
            always = below[latent].all(0)
            assert always.sum() >= 2  # its two children are on wherever it is


def test_tokens_are_at_most_children_cubed():
    for config in TABLE_1:
        count = sequences(config, 3).present.sum(1)
        assert count.min() >= config.children and count.max() <= config.children**3


def test_the_last_combination_is_found_when_all_are_needed():
    config = FixedHierarchy(classes=6, children=2, latents=(4, 4), tokens=5)
    assert len(sequences(config, 0).latents[1].unique(dim=0)) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 7, "latents": (4, 4)}, "7 parents cannot .* 2 children out of 4: there are 6"),
        ({"children": 4}, "may expand to 64 tokens, more than length = 30"),
        ({"children": 0}, "children = 0"),
    ],
)
def test_refuses_what_does_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        FixedHierarchy(**arguments)


def test_the_pad_is_no_token():
    config = FixedHierarchy()
    assert config.pad == config.tokens == config.vocabulary - 1
    assert int(torch.max(sequences(config, 0).sequences)) == config.pad


def untrained_match(config: FixedHierarchy, seed: int) -> list[float]:
    """Best correlation of a latent with 400 random max-pooled ReLU units, mean of each level."""
    drawn = sequences(config, seed)
    generator = torch.Generator().manual_seed(seed)
    units = torch.randn(config.vocabulary, 400, generator=generator).relu()
    pooled = units[drawn.sequences].amax(1)
    found = []
    for latents in drawn.latents:
        defined = latents[:, latents.any(0) & ~latents.all(0)].float()
        table = torch.corrcoef(torch.cat([defined, pooled], 1).T).nan_to_num()  # constant units
        found.append(float(table[: defined.shape[1], defined.shape[1] :].amax(1).mean()))
    return found


@pytest.mark.parametrize("config", TABLE_1, ids=str)
def test_random_units_match_the_lower_latents_and_not_the_upper_ones(config):
    lower, upper = torch.tensor([untrained_match(config, seed) for seed in range(5)]).mean(0)
    # Over the 12 cells .924 to 1.000 and .365 to .669: which level is which cannot be mistaken.
    assert lower > 0.9 and upper < 0.7

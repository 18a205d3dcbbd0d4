import numpy as np
import pytest
import torch

from joma.data.hblt import NoisyTree, sample
from joma.theory import hblt as theory

SAMPLES = 100_000
SIGMAS = 3  # agreement: a right sampler fails one comparison in 370, and the seeds are fixed
REJECTED = 10  # refutation: no chance event

# Different polarity on every edge, and a root with three classes.
UNEVEN = NoisyTree(
    edges=((0.9, 0.5), (0.8, -0.3, 0.7, 0.95), (0.6, 0.9, 0.99, 0.2, 0.85, 0.4, 0.75, 0.9)),
    zero_given_class=((0.9,), (0.2,), (0.6,)),
    prior=(0.5, 0.3, 0.2),
)
BY_LEVEL = NoisyTree(edges=(0.95, 0.9, 0.6), zero_given_class=((0.8,), (0.3,)), prior=(0.7, 0.3))

SETTINGS = {
    "typical": NoisyTree.even(0.8, levels=4, rho_0=0.6),
    "nearly certain": NoisyTree.even(0.98, levels=5, rho_0=0.9),
    "anticorrelated": NoisyTree.even(-0.7, levels=4, rho_0=0.3),
    "wide": NoisyTree.even(0.6, levels=3, rho_0=-0.4, branching=4),
    "by level": BY_LEVEL,
    "by edge": UNEVEN,
}


def polarity(tree: NoisyTree, leaf: int, above: int) -> float:
    """From the ancestor at level `above` down to a leaf: the product of the edges."""
    product = 1.0
    for level in range(above):
        rho = tree.edges[-1 - level]
        product *= rho[leaf // tree.branching**level] if isinstance(rho, tuple) else rho
    return product


def root_polarity(tree: NoisyTree, form: str = "corrected") -> float:
    zero = np.array([row[0] for row in tree.zero_given_class])
    prior = np.array(tree.prior) if tree.prior else np.full(len(zero), 1 / len(zero))
    return theory.root_polarity(zero, prior, form=form)


def predicted(tree: NoisyTree, leaf: int, other: int, form: str = "corrected") -> float:
    """Theorem 5 for any edges: $P[y_l = 1 | y_m = 1]$."""
    height = theory.ancestor_level(leaf, other, tree.branching)
    ours, theirs = polarity(tree, leaf, height), polarity(tree, other, height)
    down = polarity(tree, other, tree.levels - 1) / theirs  # from the top to the ancestor
    return theory.cooccurrence_of_paths(ours, theirs, down * root_polarity(tree, form))


def deviations(tree: NoisyTree, seed: int, form: str = "corrected") -> list[float]:
    """Standard errors between sample and theory, for a leaf of each half and each level."""
    leaves = sample(tree, SAMPLES, seed).leaves
    found = []
    for height in range(1, tree.levels):
        for leaf, other in [(0, tree.branching ** (height - 1)), (leaves.shape[1] - 1, 0)]:
            given = leaves[leaves[:, other], leaf].double()
            expected = predicted(tree, leaf, other, form)
            sigma = (expected * (1 - expected) / len(given)) ** 0.5
            found.append(abs(float(given.mean()) - expected) / sigma)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_leaves_occur_together_as_theorem_5_says(name):
    assert max(deviations(SETTINGS[name], seed=0)) < SIGMAS


@pytest.mark.parametrize("name", SETTINGS)
def test_printed_root_polarity_is_rejected(name):
    assert max(deviations(SETTINGS[name], seed=0, form="printed")) > REJECTED


def test_even_trees_agree_with_the_closed_form_of_theorem_5():
    tree = SETTINGS["typical"]
    for other in (1, 2, 4):
        height = theory.ancestor_level(0, other)
        exact = theory.cooccurrence(0.8, 0.6, levels=4, ancestor=height)
        assert predicted(tree, 0, other) == pytest.approx(exact, rel=1e-12)


def test_each_edge_flips_as_often_as_its_polarity_says():
    latents = sample(UNEVEN, SAMPLES, 1).latents
    for level, rho in enumerate(reversed(UNEVEN.edges)):
        parents = latents[level + 1].repeat_interleave(2, dim=1)
        flipped = (latents[level] ^ parents).double().mean(0)
        expected = (1 - torch.tensor(rho).double()) / 2
        sigma = (expected * (1 - expected) / SAMPLES).sqrt()
        # 14 edges over three levels, so 4 sigma: one right sampler in a thousand would fail
        assert ((flipped - expected).abs() < 4 * sigma).all()


def test_classes_follow_the_prior_and_set_the_top_latent():
    drawn = sample(UNEVEN, SAMPLES, 2)
    shares = drawn.classes.bincount() / SAMPLES
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.006)  # 4 sigma
    for k, (zero,) in enumerate(UNEVEN.zero_given_class):
        measured = 1 - drawn.latents[-1][drawn.classes == k].double().mean()
        assert float(measured) == pytest.approx(zero, abs=0.015)  # 4 sigma of the smallest class


def test_without_noise_every_leaf_copies_the_top_latent():
    drawn = sample(NoisyTree.even(1.0, levels=5), 100, 0)
    assert torch.equal(drawn.leaves, drawn.latents[-1].expand(100, 16))


def test_a_root_may_have_several_children():
    tree = NoisyTree(edges=(1.0,), zero_given_class=((1.0, 0.0, 1.0), (0.0, 1.0, 1.0)))
    drawn = sample(tree, 200, 0)
    assert drawn.leaves.shape == (200, 6) and set(drawn.classes.tolist()) == {0, 1}
    assert torch.equal(drawn.latents[1][:, 0], drawn.classes == 1)
    assert not drawn.latents[1][:, 2].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": (1.5,)}, r"lie in \[-1, 1\]; level 0 has \(1.5,\)"),
        ({"edges": ((0.1, 0.2, 0.3),)}, "Level 0 has 2 nodes; got 3 edges"),
        ({"edges": (), "zero_given_class": ((0.5,), (0.5, 0.5))}, r"rows of \[1, 2\]"),
        ({"edges": (), "zero_given_class": ((1.5,),)}, "holds probabilities"),
        ({"edges": (), "prior": (0.5,)}, "1 probabilities that sum to 1"),
        ({"edges": (0.5,), "branching": 0}, "branching = 0"),
    ],
)
def test_refuses_what_is_no_tree(arguments, message):
    with pytest.raises(ValueError, match=message):
        NoisyTree(**arguments)

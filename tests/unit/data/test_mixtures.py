import numpy as np
import pytest
import torch
from scipy import stats

from joma.data.mixtures import GAUSSIAN, HEAVY, Clusters, Normals, StudentT, pair, sample
from joma.theory import clusters as lemmas, projections

SAMPLES = 200_000
SIGMAS = 4  # 11 comparisons per scatter, three scatters: one right sampler in 500 would fail

SCATTERS = {
    "gaussian": (GAUSSIAN, projections.NORMAL),
    "heavy": (HEAVY, projections.GaussianMixture((0.9, 0.1), (0.3, 3.0))),
    "t": (StudentT(3), projections.StudentT(3.0)),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_a_step_node_averages_the_cluster_as_lemma_1_says(name, rng):
    scatter, projection = SCATTERS[name]
    centre = rng.normal(size=10) / 3
    v, xi = rng.normal(size=10), 0.3
    only = Clusters((tuple(centre.tolist()),), (1.0,), (1.0,), scatter)
    x = sample(only, SAMPLES, 0).x.numpy()
    gate = (x @ v + xi > 0).astype(float)
    expected = lemmas.cluster_means(v, xi, centre, projection=projection)
    for values, mean in [(gate[:, None], [expected.psi]), (x * gate[:, None], expected.x_psi)]:
        sigma = values.std(0) / SAMPLES**0.5
        assert (np.abs(values.mean(0) - mean) < SIGMAS * sigma).all()


@pytest.mark.parametrize("name", SCATTERS)
def test_every_unit_projection_has_the_density_of_the_theory(name, rng):
    scatter, projection = SCATTERS[name]
    x = sample(Clusters(((0.0,) * 6,), (1.0,), (1.0,), scatter), 20_000, 1).x.numpy()
    axis = rng.normal(size=6)
    for direction in (axis / np.linalg.norm(axis), np.eye(6)[0]):
        assert stats.kstest(x @ direction, projection.cdf).pvalue > 0.001


def test_the_pair_is_the_setting_of_the_one_neuron_contrast():
    config = pair(0)
    centre, zero = torch.tensor(config.centres, dtype=torch.float64)
    assert config.probabilities == (0.2, 0.8) and config.signals == (1.0, -1.0)
    assert float(centre.norm()) == pytest.approx(1.0, rel=1e-12) and not zero.any()
    assert len(centre) == 10 and 1 < float(centre.max() / centre.min()) < 4


def test_separation_is_the_length_of_the_centre():
    far, near = (torch.tensor(pair(0, separation=s).centres[0]) for s in (2.5, 1.0))
    torch.testing.assert_close(far, 2.5 * near)


def test_signals_belong_to_clusters_and_shares_to_probabilities():
    drawn = sample(pair(0), SAMPLES, 2)
    assert torch.equal(drawn.signal, 1.0 - 2.0 * drawn.cluster.double())
    assert float((drawn.cluster == 0).double().mean()) == pytest.approx(0.2, abs=0.0036)  # 4 sigma


def test_a_heavy_cluster_is_not_a_product_of_heavy_components():
    x = sample(Clusters(((0.0, 0.0),), (1.0,), (1.0,), HEAVY), SAMPLES, 0).x.abs()
    assert float(torch.corrcoef(x.T)[0, 1]) > 0.3  # independent components would give 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normals((0.5, 0.5), (1.0,)), "one positive weight per positive sigma"),
        (lambda: Normals((0.5, 0.4), (1.0, 2.0)), "sum to 1"),
        (lambda: StudentT(1), "df is at least 2; got 1"),
        (lambda: Clusters(((0.0,), (1.0,)), (0.5, 0.6), (1.0, -1.0)), "sum to 1"),
        (lambda: Clusters(((0.0,), (1.0,)), (1.0,), (1.0,)), "got 2 centres, 1 prob"),
        (lambda: Clusters(((0.0,), (1.0, 2.0)), (0.5, 0.5), (1.0, 1.0)), "of one length"),
    ],
)
def test_refuses_what_is_no_mixture(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""The verdicts of the experiments that need no training, with the numbers of the specification."""

import pytest

from joma.experiments import _runner, registry

NAMES = ("fig4", "thm2", "thm4", "thm5", "low_rank")


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    found = {}
    for name in NAMES:
        experiment = registry.load(name)
        _runner.run(name, experiment, out=out)
        for claim, finding in _runner.check(name, experiment, out=out):
            found[f"{name}:{claim.name}"] = finding
    return found


def test_verdicts_are_those_of_the_specification(findings):
    assert {name: str(f.verdict) for name, f in findings.items()} == {
        "fig4:authors_curve": "holds",
        "fig4:drop_and_bounce": "holds",
        "fig4:caption": "fails",
        "fig4:any_mu": "fails",
        "thm2:invariant": "holds",
        "thm2:invariant_as_printed": "fails",
        "thm2:solution": "holds",
        "thm4:ratio": "holds",
        "thm4:threshold": "holds",
        "thm4:threshold_as_printed": "fails",
        "thm5:cooccurrence": "holds",
        "thm5:rho_0_as_printed": "fails",
        "low_rank:velocity": "holds",
        "low_rank:stable_rank": "holds",
        "low_rank:algebraic_rank": "fails",
    }


def test_figure_4_is_that_of_the_authors_script(findings):
    numbers = findings["fig4:authors_curve"].numbers
    assert numbers["lowest"] == pytest.approx(0.942, abs=0.005)
    assert numbers["at step"] == pytest.approx(669, abs=5)
    assert numbers["end"] == pytest.approx(1.549, abs=0.005)


def test_every_draw_of_mu_drops_and_bounces_and_no_linear_one_rises(findings):
    finding = findings["fig4:drop_and_bounce"]
    assert finding.seeds == 20
    assert finding.spread["drop"][0] > 1.4
    assert finding.spread["bounce"][0] > 0.3
    assert finding.spread["linear rise"][1] < 1e-3


def test_small_mu_hardly_bounces(findings):
    low, high = findings["fig4:any_mu"].spread["bounce"]
    assert 0.005 < low < high < 0.045


def test_theorem_2_tells_the_two_widths_apart(findings):
    spread = findings["thm2:invariant"].spread
    assert spread["spread"][1] < 1e-5
    assert spread["printed"][0] > 0.1


def test_theorem_4_is_within_three_percent_at_16(findings):
    finding = findings["thm4:ratio"]
    assert finding.spread["off by"][1] < 0.03
    assert finding.spread["control off by"][0] > 0.5


def test_theorem_5_is_within_three_sigma_on_six_trees(findings):
    spread = findings["thm5:cooccurrence"].spread
    assert spread["sigmas"][1] < 3
    assert spread["printed"][0] > 10


def test_the_weights_keep_their_rank(findings):
    assert findings["low_rank:algebraic_rank"].spread["lowest"] == (5.0, 5.0)

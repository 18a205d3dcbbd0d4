"""Theorem 3: the search for balances, and the range of levels that it draws from."""

import numpy as np
import pytest

from joma.experiments import thm3
from joma.theory import critical_points
from joma.theory.projections import NORMAL, Logistic

CONFIG = thm3.Config(tokens=3, tilts=301)


@pytest.mark.parametrize("level", np.linspace(*CONFIG.levels, 7))
def test_every_level_that_may_be_drawn_has_three_roots(level):
    assert len(critical_points.level_roots(float(level), thm3.HEAVY)) == 3


def test_the_search_finds_a_balance_that_was_put_there():
    centre_root, right = critical_points.level_roots(1.0, thm3.HEAVY)[1:]
    centre = (right - centre_root) * np.eye(3)[0]
    assert thm3._balances(CONFIG, centre, thm3.HEAVY) >= 1


@pytest.mark.parametrize("law", [NORMAL, Logistic()])
@pytest.mark.parametrize("distance", [0.3, 1.0, 3.0])
def test_the_search_finds_none_for_log_concave_clusters(law, distance):
    assert thm3._balances(CONFIG, distance * np.eye(3)[0], law) == 0

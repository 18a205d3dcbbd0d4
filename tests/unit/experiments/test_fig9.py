"""Figure 9: its measures of bending and falling, and the numbers it is held to."""

import numpy as np
import pytest

from joma.experiments import fig9
from joma.experiments.base import Curve
from joma.theory import convergence

Y = np.linspace(0.01, 0.99, 99)
# The constants are written to nine digits.
WRITTEN = 1e-9


def test_constants_of_lemma7_are_those_of_the_theory():
    at, value = convergence.lemma7_maximum()
    assert at == pytest.approx(fig9.AT, abs=WRITTEN)
    assert value == pytest.approx(fig9.TOP, abs=WRITTEN)


def test_a_convex_curve_from_the_origin_meets_no_line_twice():
    assert not fig9._falls(Curve(Y, Y**2))
    assert fig9._falls(Curve(Y, np.sqrt(Y)))


@pytest.mark.parametrize("left", [True, False])
def test_bend_has_the_sign_of_the_curvature(left):
    assert fig9._least_bend(Curve(Y, Y**2), left=left) > 0
    assert fig9._least_bend(Curve(Y, np.sqrt(Y)), left=left) < 0

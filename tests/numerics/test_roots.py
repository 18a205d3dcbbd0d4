"""The bracketed Newton solver finds roots whatever it is proposed."""

import numpy as np
import pytest

from joma.theory.roots import solve_increasing

TARGETS = np.array([1e-12, 0.3, 8.0, 1e12])
# A few rounding errors of the root: more than that is a search that stopped early.
RTOL = 4e-15


def solve(step_of):
    def propose(x, active):
        return x**3 - TARGETS[active], step_of(x, x**3 - TARGETS[active])

    upper = np.full(4, 1e6)
    return solve_increasing(propose, np.full(4, 1e-6), upper, upper)


@pytest.mark.parametrize(
    "step_of",
    [
        lambda x, value: -value / (3 * x**2),
        lambda x, value: np.full_like(x, np.nan),
        lambda x, value: value / (3 * x**2),
        lambda x, value: -0.3 * value / (3 * x**2),
    ],
    ids=["newton", "nan", "wrong direction", "too short"],
)
def test_roots_are_found_with_any_proposal(step_of):
    np.testing.assert_allclose(solve(step_of), np.cbrt(TARGETS), rtol=RTOL)


def test_arguments_are_left_alone():
    lower, upper = np.zeros(2), np.ones(2)
    solve_increasing(lambda x, _: (x - 0.5, 0.5 - x), lower, upper, upper)
    assert (lower == 0).all() and (upper == 1).all()


def test_a_function_without_a_value_is_reported():
    with pytest.raises(FloatingPointError, match="nan at 1"):
        solve_increasing(lambda x, _: (x * np.nan, x), np.zeros(1), np.ones(1), np.ones(1))

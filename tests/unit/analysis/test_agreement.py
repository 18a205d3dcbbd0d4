import math

import numpy as np
import pytest

from joma.analysis.agreement import agreement
from joma.records import arrow
from joma.records.schema import Kind

EXACT = 1e-12  # linear interpolation of a linear curve


def curve(kind, steps, values, **more):
    named = {"run": "toy", "metric": "stable_rank", "layer": [0] * len(steps)}
    return arrow.from_columns(**named | {"kind": kind.value, "step": steps, "value": values} | more)


def compared(measured, predicted, **options):
    import pyarrow as pa

    return agreement(pa.concat_tables([measured, predicted]), **options)


def test_a_prediction_that_holds_agrees_between_its_own_points():
    measured = curve(Kind.MEASURED, [0.0, 1.0, 2.0], [4.0, 3.0, 2.0])
    (found,) = compared(measured, curve(Kind.PREDICTED, [0.0, 4.0], [4.0, 0.0]))
    assert found.points == 3
    assert found.largest == pytest.approx(0.0, abs=EXACT)
    assert found.correlation == pytest.approx(1.0, rel=EXACT)


def test_distances_are_those_of_the_common_points():
    measured = curve(Kind.MEASURED, [0.0, 1.0, 9.0], [4.0, 2.0, 7.0])
    (found,) = compared(measured, curve(Kind.PREDICTED, [0.0, 4.0], [4.0, 0.0]))
    assert (found.points, found.largest) == (2, pytest.approx(1.0, rel=EXACT))
    assert found.typical == pytest.approx(math.sqrt(0.5), rel=EXACT)
    assert found.relative == pytest.approx(math.sqrt(0.5) / 2, rel=EXACT)


def test_steps_become_time():
    measured = curve(Kind.MEASURED, [0.0, 10.0], [4.0, 3.0])
    predicted = curve(Kind.PREDICTED, [0.0, 4.0], [4.0, 0.0])
    (found,) = compared(measured, predicted, time_per_step=0.1)
    assert found.largest == pytest.approx(0.0, abs=EXACT)


def test_curves_without_a_common_point_are_undefined_not_zero():
    measured = curve(Kind.MEASURED, [9.0], [1.0])
    (found,) = compared(measured, curve(Kind.PREDICTED, [0.0, 4.0], [4.0, 0.0]))
    assert found.points == 0
    assert all(math.isnan(x) for x in (found.largest, found.typical, found.correlation))


def test_curves_of_another_layer_run_or_control_do_not_meet():
    measured = curve(Kind.MEASURED, [0.0], [1.0])
    for more in ({"layer": [1]}, {"run": "other"}, {"site": "decoder.cross"}):
        assert compared(measured, curve(Kind.PREDICTED, [0.0], [1.0], **more)) == ()
    assert compared(measured, curve(Kind.CONTROL, [0.0], [1.0])) == ()


def test_theory_and_a_simulation_of_it_agree():
    """Records that theory writes itself: a curve sampled finely, and every tenth point of it."""
    from joma.theory import predictions

    times = np.linspace(0.0, 1.0, 101)
    fine = predictions.curve("toy", "stable_rank", times, 1 + np.exp(-times), layer=0)
    measured = curve(Kind.MEASURED, times[::10], 1 + np.exp(-times[::10]))
    (found,) = compared(measured, fine)
    assert found.points == 11
    assert found.largest < EXACT

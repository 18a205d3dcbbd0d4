"""The observations of a run, read off its records."""

import math

import numpy as np
import pyarrow as pa
import pytest

from joma.analysis.series import series
from joma.records import arrow


def table(loss_steps, context):
    steps = np.array([0.0, 8.0])
    entropy = arrow.from_columns(
        run="a", metric="attention_entropy", step=steps, value=[2.5, 2.0], layer=[0, 0],
        context="probe",
    )  # fmt: skip
    loss = arrow.from_columns(
        run="a", metric="loss", step=loss_steps, value=[9.0 - s for s in loss_steps],
        context=context,
    )  # fmt: skip
    return pa.concat_tables([entropy, loss])


def test_a_training_loss_of_step_1_is_that_of_the_untrained_model():
    (found,) = series(table([1.0, 4.0, 8.0], "train"))
    assert [seen.loss for seen in found.seen] == [8.0, 1.0]


@pytest.mark.parametrize(("steps", "context"), [([2.0, 8.0], "train"), ([1.0, 8.0], "probe")])
def test_no_later_loss_stands_in_for_step_0(steps, context):
    (found,) = series(table(steps, context))
    assert math.isnan(found.seen[0].loss) and found.seen[1].loss == 1.0

"""Figure 3: the rule that sorts components into growing and saturated."""

import numpy as np

from joma.experiments import _figure2, fig3


def test_components_are_sorted_by_what_they_do_in_the_last_quarter():
    steps = np.arange(0, 101, 10)
    t = np.linspace(0.0, 1.0, 101)
    grows, stops, shrinks = t, np.minimum(t, 0.3), np.minimum(t, 1 - t)
    v = np.stack([grows, stops, stops, shrinks], axis=1)[:, :, None]
    trained = _figure2.train(_figure2.Config(iterations=1, every=1), "smooth", 0)
    shares = fig3._shares(trained._replace(steps=steps, v=v))
    assert shares[fig3.GROWING][-1] == 0.25
    assert shares[fig3.SATURATED][-1] == 0.5

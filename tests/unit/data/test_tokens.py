import math

import pytest
import torch

from joma.data.tokens import TokenClasses, frequencies

ATOL = 1e-14  # a sum of 20 float64 numbers that add up to 1


@pytest.mark.parametrize("kind", ["smooth", "random"])
def test_each_class_is_a_distribution_over_tokens(kind):
    x = frequencies(TokenClasses(kind=kind), 0)
    assert x.shape == (20, 20) and x.dtype == torch.float64 and (x > 0).all()
    torch.testing.assert_close(x.sum(1), torch.ones(20).double(), atol=ATOL, rtol=0)


def test_smooth_rows_are_the_bell_of_the_authors_script():
    x = frequencies(TokenClasses(), 1)
    for k, i, j in [(0, 0, 9), (7, 2, 5), (19, 9, 1)]:
        bell = [math.exp(-((n - 10 * k / 20) ** 2) / 30) for n in (i, j)]
        assert float(x[k, i] / x[k, j]) == pytest.approx(bell[0] / bell[1], rel=1e-12)


def test_the_smooth_peak_moves_with_the_class():
    peaks = frequencies(TokenClasses(), 0)[:, :10].argmax(1)
    assert peaks[0] == 0 and peaks[-1] == 9 and (peaks.diff() >= 0).all()


def test_neighbouring_classes_resemble_each_other_only_in_smooth_data():
    def likeness(kind):
        x = frequencies(TokenClasses(kind=kind), 0)[:, :10]
        return float(torch.corrcoef(x).diagonal(1).mean())

    assert likeness("smooth") > 0.9 > 0.5 > abs(likeness("random"))


def test_loose_tokens_have_one_draw_in_both_kinds():
    smooth, random = (frequencies(TokenClasses(kind=k), 5)[:, 10:] for k in ("smooth", "random"))
    ratio = smooth / random  # the normalisers of a row
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), atol=0, rtol=1e-12)


def test_refuses_no_tokens():
    with pytest.raises(ValueError, match=r"got 20 classes and 0 \+ 0 tokens"):
        TokenClasses(banded=0, loose=0)

"""The benchmark of the stable rank: what it measures, and that the bars are cleared."""

import sys

import pytest
import torch

from joma._core.errors import MissingExtraError
from joma.bench import _rank, _weightwatcher
from joma.metrics.rank import stable_rank


def test_trained_like_has_outliers_above_decaying_columns():
    weight = _rank.trained_like(400, 200)
    sigma = torch.linalg.svdvals(weight)
    assert torch.equal(weight, _rank.trained_like(400, 200))
    assert sigma[0] > 1.2 * sigma[1]


def test_missing_peer_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "weightwatcher", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'joma\[bench\]'"):
        _weightwatcher._child()


def test_trained_like_is_certified_in_few_passes():
    """Counts, not times: these hold on any machine."""
    weight = _rank.trained_like(2048, 1024)
    cold = stable_rank(weight)
    assert cold.method == "lanczos" and cold.passes <= 5
    assert stable_rank(weight, columns=4).passes <= 8
    assert stable_rank(weight, warm=cold.warm).passes <= 4


@pytest.mark.slow
def test_every_bar_is_cleared():
    rows = [*_rank.rank_rows(), *_weightwatcher.peer_rows()]
    assert [str(row) for row in rows if row.passed is False] == []

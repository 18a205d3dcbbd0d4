"""What two ranks have seen is added up by one all-reduce, whatever each of them saw."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch

from joma.probes import ranks
from joma.probes.base import Place

CODE = """
import json, os, sys, tempfile
from typing import ClassVar
import torch
import torch.distributed as dist
from torch import nn
from joma.probes.base import AbstractStreamProbe, Need
from joma.probes.observe import observe

class Sums(AbstractStreamProbe):
    need: ClassVar = Need.ATTENTION
    def observe(self, seen):
        rows = seen.query.double().sum((0, 2, 3))
        return {"sum": rows, "count": torch.ones_like(rows), "max:top": rows}
    def readings(self, place, sums):
        for name in sorted(sums):
            for head, value in enumerate(sums[name].tolist()):
                yield place.reading(name, value, head=head)

def model():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

def main(rank, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(folder, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    calls = {"all_reduce": 0, "all_gather_object": 0}
    for name in calls:
        original = getattr(dist, name)
        def counted(*args, original=original, name=name, **kwargs):
            calls[name] += 1
            return original(*args, **kwargs)
        setattr(dist, name, counted)
    net = model()
    batches = torch.randn(4, 1, 3, 8, generator=torch.Generator().manual_seed(1))
    mine = [batches[:1], batches[1:]][rank]
    seen = observe(net, [Sums()])
    rounds = []
    for use in (mine, [mine[:0], mine][rank], mine):  # in the second round rank 0 has no batch
        seen.reset()
        with seen:
            for batch in use:
                net(batch)
        before = dict(calls)
        seen.all_reduce()
        rounds.append({
            "values": [r.value for r in seen.streamed()],
            "all_reduce": calls["all_reduce"] - before["all_reduce"],
            "all_gather_object": calls["all_gather_object"] - before["all_gather_object"],
        })
    whole = observe(net, [Sums()])
    with whole:
        for batch in batches:
            net(batch)
    expected = [r.value for r in whole.streamed()]
    print("RESULT" + json.dumps({"rounds": rounds, "expected": expected}))
    dist.destroy_process_group()

main(int(sys.argv[1]), sys.argv[2])
"""


def test_two_ranks_know_what_one_would_have_seen(tmp_path):
    arguments = [sys.executable, "-c", textwrap.dedent(CODE)]
    processes = [
        subprocess.Popen(
            [*arguments, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    results = [json.loads(text.partition("RESULT")[2]) for text in outputs]
    first, second = (result["rounds"] for result in results)
    assert [r["values"] for r in first] == [r["values"] for r in second]
    assert first[0]["values"] == pytest.approx(results[0]["expected"], rel=1e-12)
    assert first[2]["values"] == pytest.approx(results[0]["expected"], rel=1e-12)
    # One collective for what is added and one for maxima; where they go is agreed on once.
    assert [r["all_reduce"] for r in first] == [2, 2, 2]
    assert [r["all_gather_object"] for r in first] == [1, 0, 0]


def test_a_spot_that_only_one_rank_saw_is_not_lost(monkeypatch):
    here, there = (0, Place(0, expert=1)), (0, Place(0, expert=0))
    layout = {there: {"n": (2,)}, here: {"n": (2,)}}
    monkeypatch.setattr(ranks, "all_reduce", lambda flat, group: flat)
    held = {here: {"n": torch.ones(2, dtype=torch.float64)}}
    whole = ranks.added_up(held, layout, torch.device("cpu"))
    assert whole[here]["n"].tolist() == [1, 1]
    assert whole[there]["n"].tolist() == [0, 0]

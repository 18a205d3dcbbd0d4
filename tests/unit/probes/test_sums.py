"""Sums of a stream are put together by adding, and by maximum where they say so."""

import json
import subprocess
import sys

import pytest
import torch

from joma.probes.sums import all_reduce, combine

WORKER = """
import json, sys
import torch
import torch.distributed as dist
from joma.probes.sums import all_reduce

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
calls, original = [], dist.all_reduce
dist.all_reduce = lambda *args, **more: calls.append(1) or original(*args, **more)
sums = {
    "rows": torch.tensor([1.0, 2.0 + rank], dtype=torch.float64),
    "max:logit": torch.tensor([[-5.0, 3.0 * rank]], dtype=torch.float64),
    "nats": torch.tensor(0.5, dtype=torch.float64),
}
whole = all_reduce(sums)
print(json.dumps({"calls": len(calls)} | {name: entry.tolist() for name, entry in whole.items()}))
dist.destroy_process_group()
"""


def entries(rows, largest):
    return {"rows": torch.tensor(rows), "max:logit": torch.tensor(largest)}


def test_entries_are_added_and_maxima_are_not():
    whole = combine(entries(2.0, -3.0), entries(3.0, -1.0))
    assert (float(whole["rows"]), float(whole["max:logit"])) == (5.0, -1.0)


def test_the_order_does_not_matter():
    a, b, c = entries(1.0, 4.0), entries(2.0, 9.0), entries(3.0, 5.0)
    assert combine(combine(a, b), c) == combine(a, combine(b, c)) == combine(combine(c, a), b)


def test_sums_of_different_probes_are_refused():
    with pytest.raises(ValueError, match=r"got entries \['max:logit', 'rows'\] and \['rows'\]"):
        combine(entries(1.0, 2.0), {"rows": torch.tensor(1.0)})


def test_ranks_are_combined_by_one_collective_of_each_kind(tmp_path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    found = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    expected = {"rows": [2.0, 5.0], "max:logit": [[-5.0, 3.0]], "nats": 1.0, "calls": 2}
    assert found == [expected, expected]


def test_nothing_to_combine_needs_no_collective():
    assert all_reduce({}) == {}

"""One of two processes that own a matrix together; started by `test_rank_sharded.py`."""

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from joma.bench._rank import trained_like
from joma.metrics import _lanczos
from joma.metrics.rank import Rows, stable_rank

BYTES = [0]


def counted(summand):
    BYTES[0] += summand.numel() * summand.element_size()
    dist.all_reduce(summand)
    return summand


def summary(found):
    return [found.value, found.lower, found.upper, found.passes, found.method]


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def run(rank):
    large = trained_like(8192, 2048)
    results = {"full": summary(stable_rank(large))}
    for name, at in (("even", 4096), ("uneven", 5000), ("one empty", 8192)):
        BYTES[0] = 0
        local = large[:at] if rank == 0 else large[at:]
        found = stable_rank(Rows.shard(local, counted))
        results[name] = summary(found)
        # Warm starts are owned by all, and the same on all.
        results[f"{name}, bytes"] = BYTES[0]
        results[f"{name}, warm"] = float(found.warm.vectors.double().sum())

    medium = trained_like(1201, 600)
    mesh = init_device_mesh("cpu", (2,))
    results["medium"] = summary(stable_rank(medium))
    for name, placement in (("rows", Shard(0)), ("cols", Shard(1)), ("whole", Replicate())):
        results[f"DTensor {name}"] = summary(
            stable_rank(distribute_tensor(medium, mesh, [placement]))
        )
    small = trained_like(301, 60)
    results["small"] = summary(stable_rank(small))
    results["DTensor small"] = summary(stable_rank(distribute_tensor(small, mesh, [Shard(0)])))
    results["zero"] = stable_rank(distribute_tensor(torch.zeros(9, 4), mesh, [Shard(0)])).status
    broken = distribute_tensor(small.index_fill(0, torch.tensor([0]), torch.nan), mesh, [Shard(0)])
    results["nan on one rank"] = stable_rank(broken).status

    partial = DTensor.from_local(small, mesh, [Partial()])
    results["partial"] = refusal(lambda: stable_rank(partial))
    square = init_device_mesh("cpu", (2, 1))
    both = distribute_tensor(small, square, [Shard(0), Shard(1)])
    results["both"] = refusal(lambda: stable_rank(both))

    # A rank whose arithmetic differs in the last bits: decisions must not.
    honest = _lanczos._ritz

    def skewed(compressed):
        ritz, vectors, skew = honest(compressed)
        return ritz * (1 + 1e-13 * rank), vectors, skew

    _lanczos._ritz = skewed
    flat = torch.randn(1200, 600, generator=torch.Generator().manual_seed(0))
    results["different bits"] = stable_rank(distribute_tensor(flat, mesh, [Shard(0)])).passes
    return results


if __name__ == "__main__":
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    print(json.dumps(run(rank)))
    dist.destroy_process_group()

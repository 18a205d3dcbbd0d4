"""One of two ranks that train together, watched or not; started by `test_ranks.py`.

python rank_worker.py RANK FOLDER CASE …   prints a line of JSON
"""

import hashlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from joma._core.errors import JomaError
from joma.metrics.entropy import AttentionEntropyProbe
from joma.models.language import LanguageConfig, LanguageModel
from joma.monitor.monitor import DEFAULT, Monitor
from joma.probes.base import AbstractWeightProbe, Need

STEPS, VOCAB = int(os.environ.get("RANK_STEPS", "12")), 40


class Log(logging.Handler):
    """Keeps what the monitor says."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Raises(AttentionEntropyProbe):
    """Fails on rank 1 only."""

    def observe(self, seen):
        if dist.get_rank() == 1:
            raise ValueError("only here")
        return super().observe(seen)


class RaisesOnWeights(AbstractWeightProbe):
    need: ClassVar = Need.MLP_IN

    def measure(self, place, tensors, warm=None):
        assert type(tensors["weight"]) is torch.Tensor  # whole, and no collective of ours
        raise ValueError("weights")


def model(dropout: float) -> LanguageModel:
    config = {"vocab": VOCAB, "layers": 2, "embed": 16, "hidden": 24, "num_heads": 2}
    return LanguageModel(LanguageConfig(**config, dropout=dropout), seed=3)


def wrapped(case: str) -> nn.Module:
    inner = model(0.0 if "plain" in case else 0.2)
    if "fsdp" in case:
        mesh = init_device_mesh("cpu", (2,))
        for block in inner.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(inner, mesh=mesh)
        return inner
    return nn.parallel.DistributedDataParallel(inner)


def batches(rank: int) -> list[torch.Tensor]:
    """Those of one rank; -1 gives both."""
    words = torch.randint(VOCAB, (STEPS, 4, 9), generator=torch.Generator().manual_seed(2))
    return list(words if rank < 0 else words[:, 2 * rank : 2 * rank + 2])


def train(
    net: nn.Module, rank: int, settings: dict | None, rate: float = 0.0
) -> tuple[str, Monitor | None]:
    torch.manual_seed(1 + rank)
    # Adam would blow up the rounding by which two ranks differ from one process.
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
    if rate:
        optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    monitor = None if settings is None else Monitor(net, **settings)
    losses = []
    for words in batches(rank):
        loss = F.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        if monitor is not None:
            monitor.step(loss=loss)
    if monitor is not None:
        monitor.close()
    found = hashlib.sha256(repr(losses).encode())
    state = [s[k] for s in optimiser.state_dict()["state"].values() for k in sorted(s)]
    for tensor in [*net.state_dict().values(), *state, torch.get_rng_state()]:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(local.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest(), monitor


def counting() -> list[str]:
    """A list that grows by the name of each collective."""
    calls = []
    for name in ("all_reduce", "all_gather_object"):
        original = getattr(dist, name)

        def counted(*args, original=original, name=name, **kwargs):
            calls.append(name)
            return original(*args, **kwargs)

        setattr(dist, name, counted)
    return calls


def tried(case: str, rank: int, folder: Path, log: Log, calls: list[str]) -> dict:
    settings = {"every": 2, "out": folder / case, "run": "two"}
    if "raises" in case:
        settings["probes"] = [Raises(), *DEFAULT, RaisesOnWeights()]
    if "budget" in case:
        settings |= {"every": None, "budget": 0.2 + 0.1 * rank}  # rank 1 would decide otherwise
    rate = 0.1 if "plain" in case else 0.0
    bare, _ = train(wrapped(case), rank, None, rate)
    log.lines.clear()
    calls.clear()
    watched, monitor = train(wrapped(case), rank, settings, rate)
    return {
        "same": bare == watched,
        "metrics": monitor.metrics(),
        "observed": monitor.cost().observed,
        "calls": {name: calls.count(name) for name in set(calls)},
        "log": list(log.lines),
    }


def refused(case: str) -> str:
    """What the monitor says of a model that is cut otherwise."""
    net, mesh = model(0.0), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    if case == "tensor parallel":
        parallelize_module(net, mesh, {"readout": ColwiseParallel()})
    else:
        net.blocks = net.blocks[dist.get_rank() :]
    log = Log()
    logging.getLogger("joma.monitor").addHandler(log)
    try:
        monitor = Monitor(net, every=1, out="unused")
    except JomaError as error:
        return str(error)
    net(torch.zeros(1, 3, dtype=torch.long)).sum().backward()
    monitor.close()
    return log.lines[0]


def main(rank: int, folder: Path, cases: list[str]) -> dict:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    store = dist.FileStore(str(folder / "gloo"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    log, calls = Log(), counting()
    logging.getLogger("joma.monitor").addHandler(log)
    logging.getLogger("joma.monitor").setLevel(logging.INFO)
    answer = {case: tried(case, rank, folder, log, calls) for case in cases}
    answer |= {case: refused(case) for case in ("tensor parallel", "pipeline parallel")}
    dist.destroy_process_group()
    return answer


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))

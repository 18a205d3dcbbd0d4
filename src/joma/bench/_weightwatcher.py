"""WeightWatcher on the same matrix: extra `bench`, in a process of its own.

It prints, sets logging and starts the threads of another BLAS. The child keeps that to itself and
runs on one thread, as everything here does.
"""

import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import torch

from joma._core.errors import JomaError, MissingExtraError
from joma._core.extras import extra
from joma.bench._rank import trained_like
from joma.bench._timing import minima, one_thread
from joma.bench.base import Row
from joma.metrics.rank import stable_rank

_MISSING = 3  # exit code of the child without the package


def peer_rows() -> Iterator[Row]:
    """How much longer WeightWatcher takes for a trained-like 8192x2048, and whether it agrees.

    It does more: it keeps the whole spectrum and fits its tail, which is where its alpha comes
    from. Only the stable rank is compared.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    child = subprocess.run(
        [sys.executable, "-m", "joma.bench._weightwatcher"],
        env=os.environ | threads,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode == _MISSING:
        raise MissingExtraError(child.stderr.strip().splitlines()[-1])
    if child.returncode:
        raise JomaError(f"WeightWatcher failed in its process:\n{child.stderr.strip()}")
    found = json.loads(child.stdout.splitlines()[-1])
    at = "trained-like 8192x2048"
    ratio = found["theirs"] / found["ours"]
    yield Row(f"weightwatcher (+ spectrum, alpha) / ours, {at}", ratio, "x", 25.0, at_least=True)
    yield Row("difference of the two stable ranks", found["difference"], "", 1e-3)


def _child() -> dict[str, float]:
    with extra("bench", packages=("weightwatcher",), purpose="The peers section"):
        weightwatcher = importlib.import_module("weightwatcher")  # it prints when imported
    weight = trained_like(8192, 2048)
    layer = torch.nn.Linear(2048, 8192, bias=False)
    layer.weight.data = weight
    watcher = weightwatcher.WeightWatcher(model=layer, log_level=logging.ERROR)
    theirs: list[float] = []

    def analyse() -> None:
        theirs.append(float(watcher.analyze()["stable_rank"].iloc[0]))

    with one_thread():
        stable_rank(weight)
        seconds = minima({"ours": lambda: stable_rank(weight), "theirs": analyse}, rounds=2)
        difference = abs(theirs[0] / stable_rank(weight).value - 1.0)
    return {"theirs": seconds["theirs"], "ours": seconds["ours"], "difference": difference}


if __name__ == "__main__":
    try:
        print(json.dumps(_child()))
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        sys.exit(_MISSING)

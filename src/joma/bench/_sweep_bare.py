"""The loop a sweep is compared with: the same ranges, the same kernel, and nothing else."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from joma.metrics._lanczos import Warm
from joma.metrics.rank import stable_rank
from joma.sources.base import coalesced
from joma.sources.local import LocalSource


class Piece(NamedTuple):
    """One matrix in a file."""

    path: str
    start: int
    stop: int
    rows: int
    cols: int


def ranges(folder: Path, names: Sequence[str]) -> dict[str, list[Piece]]:
    """Where the matrices of each revision are, in order of the suite."""
    source, found = LocalSource(folder), {}
    for revision in source.revisions():
        index = source.index(revision.name)
        infos = index.pick(names)
        assert len(coalesced(infos)) == len(names), "neighbours would be read as one"
        found[revision.name] = [
            Piece(str(folder / revision.name / i.file), i.start, i.stop, *i.shape) for i in infos
        ]
    return found


def loop(suite: Sequence[Sequence[Piece]], chunk: int) -> float:
    """Sum of all stable ranks: cold at the start of each chunk of revisions, then warm."""
    total = 0.0
    for at in range(0, len(suite), chunk):
        warm: list[Warm | None] = [None] * len(suite[at])
        for pieces in suite[at : at + chunk]:
            for i, weight in enumerate(_weights(pieces)):
                found = stable_rank(weight, warm=warm[i])
                warm[i] = found.warm
                total += found.value
    return total


def _weights(pieces: Sequence[Piece]) -> Iterator[torch.Tensor]:
    for piece in pieces:
        descriptor = os.open(piece.path, os.O_RDONLY)
        try:
            buffer = torch.empty(piece.stop - piece.start, dtype=torch.uint8)
            os.preadv(descriptor, [buffer.numpy().data], piece.start)
        finally:
            os.close(descriptor)
        yield buffer.view(torch.float16).view(piece.rows, piece.cols)


def main() -> None:
    """Reads the suite once, then runs the loop once for each further line of input."""
    torch.set_num_threads(1)
    chunk, suite = json.loads(sys.stdin.readline())
    pieces = [[Piece(*piece) for piece in revision] for revision in suite]
    loop(pieces[:2], chunk)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loop(pieces, chunk)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()

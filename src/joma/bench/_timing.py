"""Timing that survives a busy machine: one thread, its own CPU time, interleaved, minima."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: with two on a busy machine, small operations stall."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def minima(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least CPU seconds of the calling thread for each variant, in rounds over all of them."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, variant in variants.items():
            start = time.thread_time()
            variant()
            best[name] = min(best[name], time.thread_time() - start)
    return best

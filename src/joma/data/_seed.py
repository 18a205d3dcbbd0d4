"""One rule for randomness in this room: a seed starts a stream, a generator continues one."""

from typing import TypeAlias

import torch

Seed: TypeAlias = int | torch.Generator
"""An int gives the same draw each time; a CPU generator is advanced by the draw."""


def stream(seed: Seed) -> torch.Generator:
    """The generator itself, or a fresh one on the CPU started from the int."""
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)

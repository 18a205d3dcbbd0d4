"""How much public suites are, and what sweeping them takes by the cost model.

Sizes of Pythia are those of its configurations; totals of all suites are the estimates that the
project keeps: 115 TB at two bytes a parameter, 21,600 revisions, lower MLP matrices 9 to 32 %.
"""

import math
from typing import Final, NamedTuple

from joma.sweep.cost import Machine, Work
from joma.sweep.plan import CHUNK, PIECE, REVISIONS


class Model(NamedTuple):
    """A model of a suite, as far as a sweep over its lower MLP matrices is concerned."""

    layers: int
    embed: int
    copies: int = 2
    """Trained so many times: on the standard and on the deduplicated data."""
    files: int = 1


PYTHIA: Final = {
    "14m": Model(6, 128, copies=1),
    "31m": Model(6, 256, copies=1),
    "70m": Model(6, 512),
    "160m": Model(12, 768),
    "410m": Model(24, 1024),
    "1b": Model(16, 2048),
    "1.4b": Model(24, 2048),
    "2.8b": Model(32, 2560),
    "6.9b": Model(32, 4096, files=2),
    "12b": Model(36, 5120, files=3),
}
PYTHIA_REVISIONS: Final = 154
ALL_BYTES: Final = 115e12
ALL_REVISIONS: Final = 21_600
SHARES: Final = (0.09, 0.32)
"""Least and largest share of the lower MLP matrices in a checkpoint."""


def pythia(name: str, machine: Machine | None = None) -> Work:
    """A sweep of `rank` over all revisions and copies of one size of Pythia."""
    model, machine = PYTHIA[name], machine or Machine()
    matrix = 4 * model.embed * model.embed
    revisions = PYTHIA_REVISIONS * model.copies
    parts = max(1, math.ceil(model.layers * 2 * matrix / CHUNK))
    chunks = math.ceil(PYTHIA_REVISIONS / REVISIONS) * model.copies
    headers = 2 + 2 * model.files
    measuring = machine.measuring((4 * model.embed, model.embed), REVISIONS) / REVISIONS
    return Work(
        bytes=revisions * model.layers * 2 * matrix,
        requests=revisions * (model.layers * math.ceil(2 * matrix / PIECE) + parts * headers),
        measuring=revisions * model.layers * measuring,
        tasks=chunks * parts,
    )


def all_suites(share: float, machine: Machine | None = None) -> Work:
    """A sweep of `rank` over every public suite, if lower MLP matrices are this share of them."""
    machine = machine or Machine()
    size = share * ALL_BYTES
    per_element = (machine.cold + (REVISIONS - 1) * machine.warm) / REVISIONS
    return Work(
        bytes=size,
        requests=size / PIECE + 40 * ALL_REVISIONS,
        measuring=size / 2 * per_element,
        tasks=max(size / CHUNK, ALL_REVISIONS) / REVISIONS,
    )

"""The kernels of `joma.metrics`, each beside the bare operation it rides on, and a peer."""

import logging
from collections.abc import Iterator

from joma._core.errors import MissingExtraError
from joma.bench._attention import attention_rows
from joma.bench._rank import rank_rows
from joma.bench._weightwatcher import peer_rows
from joma.bench.base import Bench, Row

_LOG = logging.getLogger(__name__)


def run() -> Iterator[Row]:
    """Stable rank, then attention, then the peer if it is installed."""
    yield from rank_rows()
    yield from attention_rows()
    try:
        yield from peer_rows()
    except MissingExtraError as missing:
        _LOG.warning("The peer is left out. %s", missing)


BENCH = Bench(
    "Kernels: cost as a ratio to one matrix-vector product, to full spectra and to the bare "
    "attention kernel; one thread, its CPU time, interleaved minima.",
    run,
)

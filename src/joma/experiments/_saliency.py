r"""Whether saliency seen early ranks what grows later, and how far it moves: the statistics.

A look is all they need of a layer: $\Delta = \mathbb E[g\,x]$, the weights on the tokens, the
attention logits. The toy and the language model hand over the same looks.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from scipy.stats import rankdata

from joma._core.typing import Array
from joma.experiments.base import records
from joma.records.schema import Kind
from joma.theory import saliency

WEIGHTS, ATTENTION = "rank_correlation_weights", "rank_correlation_attention"
COSINE, DRIFT, ENTROPY = "saliency_cosine", "saliency_drift", "attention_entropy"
FREQUENCY, SHUFFLED = "_frequency", "_shuffled"


class Look(NamedTuple):
    """A layer at one step of its training."""

    delta: Float[Array, "tokens hidden"]
    r"""$\mathbb E[g_k x_l]$."""
    shuffled: Float[Array, "tokens hidden"]
    """The same with the signals of each node dealt to other samples: what `x` and `g` do apart."""
    frequency: Float[Array, " tokens"]
    r"""$\mathbb E[x_l]$."""
    v: Float[Array, "tokens hidden"]
    """Weight of each node on each token."""
    z: Float[Array, " tokens"]
    """Attention logit of each token."""
    entropy: Float[Array, ""]
    """Of attention, in nats, mean over samples."""


Looks = Mapping[int, Look]
"""By step, in order."""


def rank_correlation(
    first: Float[Array, "tokens *hidden"], second: Float[Array, "tokens *hidden"]
) -> float:
    """Spearman's correlation over tokens, averaged over nodes if there are several.

    A node without any order among its tokens has none (`nan`), and makes the average `nan`.
    """
    a, b = (rankdata(side, axis=0) for side in (first, second))
    a, b = (side - side.mean(0) for side in (a, b))
    length = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return float(np.mean((a * b).sum(0) / np.where(length > 0, length, np.nan)))


def cosine(first: Float[Array, "tokens hidden"], second: Float[Array, "tokens hidden"]) -> float:
    """Of the angle between two saliencies, all entries of each as one vector."""
    length = np.linalg.norm(first) * np.linalg.norm(second)
    return float((first * second).sum() / length) if length > 0 else float("nan")


def ranking(arm: str, seed: int, looks: Looks, since: int) -> Iterator[pa.Table]:
    r"""Rank correlation of what was seen at step `since` with the growth from there.

    Weights: $|\Delta_{lk}|$ with $|v_{lk} - v_{lk}(since)|$ over tokens, node by node. Attention:
    the length of $\Delta_l$ with the increase of $z_l$.
    """
    start = looks[since]
    predictors = {
        "": np.abs(start.delta),
        FREQUENCY: np.broadcast_to(start.frequency[:, None], start.delta.shape),
        SHUFFLED: np.abs(start.shuffled),
    }
    later = {step: look for step, look in looks.items() if step > since}
    for ending, size in predictors.items():
        total = np.linalg.norm(size, axis=1)
        values = {
            WEIGHTS: [rank_correlation(size, np.abs(n.v - start.v)) for n in later.values()],
            ATTENTION: [rank_correlation(total, n.z - start.z) for n in later.values()],
        }
        kind = Kind.CONTROL if ending else Kind.MEASURED
        for metric, value in values.items():
            yield _curve(arm + ending, seed, metric, list(later), value, kind)


def movement(arm: str, seed: int, looks: Looks) -> Iterator[pa.Table]:
    r"""Cosine of $\Delta(t)$ with its start, its relative drift, and the entropy meanwhile."""
    steps, seen = list(looks), list(looks.values())
    first = seen[0].delta
    values = {
        COSINE: [cosine(first, look.delta) for look in seen],
        DRIFT: saliency.stationarity(np.stack([look.delta for look in seen])).tolist(),
        ENTROPY: [float(look.entropy) for look in seen],
    }
    for metric, value in values.items():
        yield _curve(arm, seed, metric, steps, value, Kind.MEASURED)
    chance = [cosine(first, look.shuffled) for look in seen]
    yield _curve(arm + SHUFFLED, seed, COSINE, steps, chance, Kind.CONTROL)


def _curve(
    arm: str, seed: int, metric: str, steps: list[int], value: list[float], kind: Kind
) -> pa.Table:
    status = ["ok" if v == v else "nothing differs between tokens" for v in value]
    return records(arm, seed, kind=kind, metric=metric, step=steps, value=value, status=status)

"""Predicted trajectories as records, under the names of the metrics that measure the same."""

from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.special import entr, softmax

from joma._core.typing import Array
from joma.records import arrow
from joma.records.schema import OK, Kind

Table: TypeAlias = Any
"""A `pyarrow.Table`; only `joma.records` handles its type."""

PAPER: dict[str, str] = {}  # no results of its own


def curve(
    run: str,
    metric: str,
    times: Float[Array, " times"],
    values: Float[Array, " times"],
    *,
    layer: int | None = None,
    undefined: str = "undefined",
) -> Table:
    """A predicted curve as a record table; `nan` carries `undefined` as its status.

    Example:
        >>> table = curve("toy", "stable_rank", np.array([0.0, 1.0]), np.array([np.nan, 1.5]))
        >>> table["kind"].to_pylist(), table["status"].to_pylist()
        (['predicted', 'predicted'], ['undefined', 'ok'])
    """
    status = [undefined if missing else OK for missing in np.isnan(values)]
    return arrow.from_columns(
        run=run,
        kind=Kind.PREDICTED.value,
        metric=metric,
        step=times,
        value=values,
        status=status,
        layer=None if layer is None else np.full(len(times), layer),
    )


def attention_entropy(
    z: Float[Array, "*times tokens"], *, temperature: float = 1.0
) -> Float[Array, "*times"]:
    r"""Entropy in nats of $\mathrm{softmax}(z/T)$ over the tokens, all equally frequent."""
    return np.asarray(entr(softmax(z / temperature, axis=-1)).sum(-1))


def stable_rank(v: Float[Array, "*times tokens hidden"]) -> Float[Array, "*times"]:
    r"""$\|V\|_F^2/\|V\|_2^2$; `nan` for a zero matrix."""
    sigma = np.linalg.svd(v, compute_uv=False)
    largest = np.where(sigma[..., :1] > 0, sigma[..., :1], np.nan)
    return np.asarray(((sigma / largest) ** 2).sum(-1))


def max_attention_logit(
    z: Float[Array, "*times tokens"], *, temperature: float = 1.0
) -> Float[Array, "*times"]:
    r"""The largest $z_l/T$, the number that enters the exponential."""
    return np.asarray(z.max(-1) / temperature)


def records(
    run: str,
    times: Float[Array, " times"],
    v: Float[Array, "times tokens hidden"],
    z: Float[Array, "times tokens"],
    *,
    temperature: float = 1.0,
    layer: int | None = None,
) -> list[Table]:
    """Entropy, stable rank and largest logit of a trajectory, one table each.

    `z` comes from the same trajectory, or from `v` by `invariants.predicted_logits`.
    """
    values = {
        "attention_entropy": attention_entropy(z, temperature=temperature),
        "stable_rank": stable_rank(v),
        "max_attention_logit": max_attention_logit(z, temperature=temperature),
    }
    return [
        curve(run, metric, times, value, layer=layer, undefined="zero matrix")
        for metric, value in values.items()
    ]

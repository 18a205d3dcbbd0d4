"""Theory beside measurement: predicted records against measured ones of the same run."""

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from joma._core.typing import Array
from joma.analysis.curves import Curve, curves
from joma.records.schema import Kind


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a measured curve is from the predicted one, where both are defined."""

    run: str
    metric: str
    layer: int | None
    points: int
    """Measured points inside the predicted range of times."""
    largest: float
    """Largest distance."""
    typical: float
    """Root mean square distance."""
    relative: float
    """`typical` as a share of the range of the measured values; `nan` for a constant curve."""
    correlation: float
    """Of both curves; `nan` if one of them is constant."""


def agreement(table: pa.Table, *, time_per_step: float | int = 1) -> tuple[Agreement, ...]:
    """Every curve that was both predicted and measured, compared at the measured steps.

    Curves meet by run, metric, layer and site. The prediction is interpolated linearly and never
    extrapolated; a curve without a common point has `points` 0 and `nan` everywhere.

    Args:
        table: Records of both kinds.
        time_per_step: Theory's time that passes in one step; the learning rate of plain SGD.
    """
    found = curves(table)
    predicted = {_key(c): c for c in found if c.kind == Kind.PREDICTED}
    return tuple(
        _compared(predicted[_key(c)], c, float(time_per_step))
        for c in found
        if c.kind == Kind.MEASURED and _key(c) in predicted
    )


def _key(curve: Curve) -> tuple[str, str, int | None, str | None]:
    return curve.run, curve.metric, curve.layer, curve.site


def _compared(predicted: Curve, measured: Curve, time_per_step: float) -> Agreement:
    defined = np.isfinite(predicted.values)
    times = time_per_step * measured.steps
    stated = (
        np.interp(
            times,
            predicted.steps[defined],
            predicted.values[defined],
            left=math.nan,
            right=math.nan,
        )
        if defined.any()
        else np.full(len(times), math.nan)
    )
    common = np.isfinite(stated) & np.isfinite(measured.values)
    ours, theirs = measured.values[common], stated[common]
    distance = np.abs(ours - theirs)
    typical = float(np.sqrt(np.mean(distance**2))) if len(ours) else math.nan
    span = float(np.ptp(ours)) if len(ours) else 0.0
    return Agreement(
        run=measured.run,
        metric=measured.metric,
        layer=measured.layer,
        points=len(ours),
        largest=float(distance.max()) if len(ours) else math.nan,
        typical=typical,
        relative=typical / span if span > 0 else math.nan,
        correlation=_correlation(ours, theirs),
    )


def _correlation(ours: Float[Array, " times"], theirs: Float[Array, " times"]) -> float:
    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return math.nan
    return float(np.corrcoef(ours, theirs)[0, 1])

"""Where a run stands: its first observation, and how long each layer is past a limit.

A fold: `advanced` takes one more observation at the cost of a few arrays of one number per layer,
so that a monitor pays the same at step 10 and at step 1,000,000.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from joma._core.typing import Array
from joma.analysis.calibration import CALIBRATION, Calibration


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One observation of a run: entropy and largest logit of each layer, and the loss.

    The entropy is in nats, attention sinks left out where they were measured, mean over heads;
    the logit is the largest over heads, and infinite if it overflowed. `nan` was not measured.
    """

    step: float | int
    entropy: Float[Array, " layers"]
    logit: Float[Array, " layers"]
    loss: float | int


@dataclass(frozen=True, eq=False)
class Stretch:
    """Since when each layer is past a limit without a break, and the loss meanwhile.

    A stretch is decided once. If the loss gains enough in time, the layer is past the limit and
    the model learns; if not, the alarm stays until the layer is back.
    """

    since: Float[Array, " layers"]
    """`nan` for a layer that is not past the limit."""
    start: Float[Array, " layers"]
    """The loss at `since`."""
    best: Float[Array, " layers"]
    """The lowest loss from `since` on."""
    stalled: Bool[Array, " layers"]
    """Whether the loss had its time in this stretch and had not gained enough."""

    @property
    def lasts(self) -> Bool[Array, " layers"]:
        """Whether the layer is past the limit now."""
        return ~np.isnan(self.since)

    @property
    def gain(self) -> Float[Array, " layers"]:
        """Share of the loss that was gained in this stretch; `nan` for a loss that is `nan`."""
        return np.asarray(1 - self.best / self.start)

    def learns(self, limits: Calibration) -> Bool[Array, " layers"]:
        """Whether the loss has gained enough in this stretch, and in time."""
        return self.lasts & ~self.stalled & (self.gain >= limits.gain)

    def longer(self, seen: Seen, past: Bool[Array, " layers"], limits: Calibration) -> "Stretch":
        """The stretch after one more observation."""
        fresh = past & ~self.lasts
        since = np.where(past, np.where(fresh, seen.step, self.since), np.nan)
        start = np.where(fresh, seen.loss, self.start)
        best = np.where(fresh, seen.loss, np.fmin(self.best, seen.loss))
        due = (seen.step > since) & (seen.step >= limits.grace * since)
        late = due & ~(1 - best / start >= limits.gain)
        return Stretch(since, start, best, past & ((self.stalled & ~fresh) | late))


@dataclass(frozen=True, eq=False)
class Standing:
    """Where a run stands after its last observation."""

    first: Seen
    last: Seen
    narrow: Stretch
    """Entropy below a share of its step 0."""
    large: Stretch
    """Logits above the limit."""


def advanced(standing: Standing | None, seen: Seen, limits: Calibration = CALIBRATION) -> Standing:
    """Where the run stands after one more observation; `None` stands before the first."""
    if standing is None:
        unknown = np.full(len(seen.entropy), np.nan)
        nothing = Stretch(unknown, unknown, unknown, np.isfinite(unknown))
        standing = Standing(seen, seen, nothing, nothing)
    first, narrow, large = standing.first, standing.narrow, standing.large
    # A layer without a reading stays where it was: its stretch neither ends nor begins.
    low = np.where(
        np.isnan(seen.entropy), narrow.lasts, seen.entropy < limits.share * first.entropy
    )
    high = np.where(np.isnan(seen.logit), large.lasts, seen.logit > limits.logit)
    return Standing(first, seen, narrow.longer(seen, low, limits), large.longer(seen, high, limits))

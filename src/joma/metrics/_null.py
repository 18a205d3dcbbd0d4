r"""The largest of many correlations when there is nothing to find, in closed form.

A Gaussian unit that knows nothing of a latent has $r^2 \sim \mathrm{Beta}(1/2, (N-2)/2)$ over $N$
independent samples, whatever the latent. The best of $n$ such units is therefore known exactly, and
it is large when $N$ is small: .63 on average for 400 units and 20 samples.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import betaincc, betainccinv

from joma._core.typing import Array


class NullMatch(NamedTuple):
    """The best match among random units."""

    mean: float
    upper: float
    """95 % quantile: one latent in twenty does better than this by chance."""


def null_match(units: int, samples: float | int, *, absolute: bool = False) -> NullMatch:
    """What `best_match` gives for independent Gaussian units.

    Exact for independent units and samples. Units that resemble each other stay below it. Rows
    that repeat, or belong to one sequence, are fewer samples than rows.

    Args:
        units: How many units compete.
        samples: Independent samples, or an effective number of them; more than 2.
        absolute: Whether the best is the largest $|r|$ instead of the largest $r$.

    Example:
        >>> print(f"{null_match(400, 20).mean:.3f} {null_match(400, 2000).mean:.3f}")
        0.626 0.066
    """
    _check(units, samples)
    # All of the distribution lies between these; outside, quadrature would waste its nodes.
    low, high, upper = _quantile(np.array([1e-16, 1 - 1e-16, 0.95]), units, samples, absolute)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    r = low + (high - low) * (nodes + 1) / 2
    above = (high - low) / 2 * float(weights @ exceedance(r, units, samples, absolute=absolute))
    return NullMatch(mean=float(low) + above, upper=float(upper))


def exceedance(
    r: Float[Array, "*shape"], units: int, samples: float | int, *, absolute: bool = False
) -> Float[Array, "*shape"]:
    """Probability that the best of random units reaches `r`: the p-value of a match."""
    _check(units, samples)
    tail = betaincc(0.5, samples / 2 - 1, np.minimum(r**2, 1.0))
    if absolute:
        tail = np.where(r > 0, tail, 1.0)
    else:
        tail = np.where(r > 0, tail / 2, 1 - tail / 2)
    with np.errstate(divide="ignore"):  # log 0 where every unit exceeds r; exp brings it back
        return np.asarray(-np.expm1(units * np.log1p(-tail)))


def _quantile(q: Array, units: int, samples: float | int, absolute: bool) -> Array:
    below = np.exp(np.log(q) / units)  # probability that one unit stays below
    above = -np.expm1(np.log(q) / units)
    b = samples / 2 - 1
    if absolute:
        return np.sqrt(betainccinv(0.5, b, above))
    size = np.sqrt(betainccinv(0.5, b, 2 * np.minimum(above, below)))
    return np.where(above < below, size, -size)


def _check(units: int, samples: float | int) -> None:
    if units < 1 or not samples > 2:
        raise ValueError(
            f"A null needs at least one unit and more than 2 samples; got {units} units and "
            f"{samples:g} samples. Two samples always correlate perfectly."
        )

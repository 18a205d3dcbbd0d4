r"""What a block Lanczos run proves about eigenvalues that it has not seen.

With a start block $Q_1$ and $A Q = Q T + Q_{k+1} B E_k^T + \Delta$, a unit eigenvector $x$ of
$A$ at $\lambda$ above all Ritz values has $\|Q_1^T x\| \le f(\lambda) + \epsilon\, g(\lambda)$ with

$$f(\lambda) = \|E_1^T (\lambda - T)^{-1} E_k B^T\|, \qquad
g(\lambda) = \|E_1^T (\lambda - T)^{-1}\|, \qquad \epsilon \ge \|\Delta^T x\|.$$

A random $Q_1$ is that blind with a probability we can name. For blocks wider than one column $f$
is *not* monotone right of the Ritz values, so its supremum over all $\lambda$ above a level is
enclosed by Taylor expansions. The derivation is in `docs/explanation/certificate.md`.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float
from scipy.special import betaincinv
from torch import Tensor

TERMS: Final = 40
"""Taylor terms on an interval; what is cut off is below `2**-TERMS` of a crude bound, and added."""
KEPT_SHARE: Final = 0.5
"""Overlap with the kept columns above which an eigenvector counts as seen by them."""
SLACK: Final = 1e-3
"""Share of the limit left to float64 rounding in evaluating it (under 1e-9 for `LEAST` columns)."""
LEAST: Final = 4
"""Fewest random columns: with one or two the limit comes too close to float64 rounding."""


def overlap_floor(cols: int, fresh: int, kept: int, failure: float) -> float:
    r"""Overlap $\|P^T x\|$ that `fresh` random columns have with a fixed unit vector, at least.

    Fails with probability `failure`: given kept columns $V$, the squared overlap of
    $x \perp V$ with a random subspace of their complement is Beta distributed. An $x$ that lies
    in the complement only in part, with $\|V^T x\| \le$ `KEPT_SHARE`, keeps that part of it.
    """
    seen = float(betaincinv(fresh / 2, (cols - kept - fresh) / 2, failure))
    return math.sqrt(seen * (1.0 - KEPT_SHARE**2 if kept else 1.0))


@dataclass(frozen=True)
class Projection:
    """A block Lanczos run, seen from its Ritz values. Float64, on the CPU."""

    ritz: Float[Tensor, " basis"]
    """Ritz values, ascending."""
    first: Float[Tensor, "start basis"]
    """Components of the Ritz vectors in the start block."""
    last: Float[Tensor, "width basis"]
    """Their components in the last block, times its coupling $B$ to the next."""

    def blindness(
        self, level: float, ceiling: float, error: float, kept: int, floor: float
    ) -> tuple[float, float]:
        """Largest overlap of an eigenvalue in `[level, ceiling]` with the start, over its limit.

        In two parts: what the run itself leaves open and what rounding by `error` adds. If they sum
        to 1 or less, there is no such eigenvalue. Where already `level` fails, the first part is
        only that of `level`.
        """
        if ceiling <= level:  # nothing can lie between them
            return 0.0, 0.0
        if level <= float(self.ritz[-1]):  # rounding is larger than the tolerance
            return math.inf, math.inf
        at = self.first / (level - self.ritz)
        parts = [(slice(kept, None), floor)] + ([(slice(kept), KEPT_SHARE)] if kept else [])
        found = []
        for part, limit in parts:
            allowed = limit * (1.0 - SLACK)
            seen = float(torch.linalg.matrix_norm(at[part] @ self.last.mT))
            blur = error * float(torch.linalg.matrix_norm(at[part]))
            if seen + blur <= allowed:
                seen = self.supremum(level, ceiling, part)
            found.append((seen / allowed, blur / allowed))
        return max(found, key=sum)

    def supremum(self, level: float, ceiling: float, part: slice = slice(None)) -> float:
        r"""Upper bound of $f$ over `[level, ceiling]`, for the start columns in `part`.

        On $[\theta + h, \theta + 3h]$ the resolvent is expanded around the middle, where
        neighbouring terms shrink at least by half; their norms add up to a bound, which for a
        single column is $f(\theta + h)$ itself. Threefold longer intervals follow up to `ceiling`.
        """
        top = float(self.ritz[-1])
        count = max(1, math.ceil(math.log((ceiling - top) / (level - top), 3)))
        reach = (level - top) * 3.0 ** torch.arange(count, dtype=torch.float64)[:, None]
        inverse = 1.0 / (top - self.ritz + 2.0 * reach)  # [interval, basis]
        order = torch.arange(TERMS, dtype=torch.float64)[:, None, None]
        weights = inverse * (reach * inverse) ** order  # [term, interval, basis]
        outer = self.first[part, None, :] * self.last  # [start, width, basis]
        terms = torch.linalg.vector_norm(weights.flatten(0, 1) @ outer.flatten(0, 1).mT, dim=1)
        coupling = float(torch.linalg.matrix_norm(self.last))
        cut_off = 2.0**-TERMS * coupling / reach[:, 0]
        return float((terms.view(TERMS, count).sum(0) + cut_off).max())

"""E10: rho_0 in Theorem 5 is a polarity, 2 P - 1, not the probability that the theorem prints."""

from fractions import Fraction

import numpy as np

from joma._core.typing import Form
from joma.theory import hblt
from joma.theory.errata.base import Erratum, Evidence

ZERO_GIVEN_CLASS = (Fraction(9, 10), Fraction(7, 10), Fraction(1))
PRIOR = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4))
RHO, LEVELS = Fraction(4, 5), 4


def evidence() -> tuple[Evidence, ...]:
    """Sum over the states of the tree in exact fractions."""
    top = sum((p * q for p, q in zip(ZERO_GIVEN_CLASS, PRIOR, strict=True)), Fraction(0))
    return tuple(
        Evidence(
            quantity=f"P[y_l=1|y_m=1], L = {LEVELS}, H = {ancestor}, rho = {RHO}, three classes",
            judge="exact enumeration in fractions",
            truth=float(enumerated(top, RHO, LEVELS, ancestor)),
            printed=_theorem(ancestor, "printed"),
            corrected=_theorem(ancestor, "corrected"),
            tolerance=1e-14,
        )
        for ancestor in (1, 3)
    )


def enumerated(top_is_zero: Fraction, rho: Fraction, levels: int, ancestor: int) -> Fraction:
    """P[y_l = 1 | y_m = 1], copying and flipping one bit per edge; no matrix algebra."""
    flip = (1 - rho) / 2

    def copied(zero: Fraction, edges: int) -> Fraction:
        for _ in range(edges):
            zero = zero * (1 - flip) + (1 - zero) * flip
        return zero

    shared = copied(top_is_zero, levels - 1 - ancestor)
    one_if_zero = 1 - copied(Fraction(1), ancestor)
    one_if_one = 1 - copied(Fraction(0), ancestor)
    both = shared * one_if_zero**2 + (1 - shared) * one_if_one**2
    return both / (shared * one_if_zero + (1 - shared) * one_if_one)


def _theorem(ancestor: int, form: Form) -> float:
    zero, prior = np.array(ZERO_GIVEN_CLASS, dtype=float), np.array(PRIOR, dtype=float)
    rho_0 = hblt.root_polarity(zero, prior, form=form)
    return hblt.cooccurrence(float(RHO), rho_0, levels=LEVELS, ancestor=ancestor)


ERRATUM = Erratum(
    number=10,
    where="Theorem 5, definition of rho_0",
    printed="rho_0 = E_k P[y_l=0 | y_0=k]",
    corrected="rho_0 = 2 E_k P[y_1=0 | y_0=k] - 1",
    evidence=evidence,
)

"""E11: the remainder of Eqn. 8 is of first order in eps."""

from fractions import Fraction

from joma._core.typing import Form
from joma.theory import hblt
from joma.theory.errata.base import Erratum, Evidence
from joma.theory.errata.e10_root_polarity import enumerated

EPS = Fraction(1, 10**6)


def evidence() -> tuple[Evidence, ...]:
    """Slope of the exact probability at eps = 0, from two fractions close to it."""
    return tuple(
        Evidence(
            quantity=f"dP/d eps at rho = rho_0 = 1, L = {levels}, H = {ancestor}",
            judge="exact enumeration in fractions, extrapolated to eps = 0",
            truth=float(
                2 * _quotient(EPS / 2, levels, ancestor) - _quotient(EPS, levels, ancestor)
            ),
            printed=_rise(levels, ancestor, "printed"),
            corrected=_rise(levels, ancestor, "corrected"),
            tolerance=1e-9,
        )
        for levels, ancestor in ((10, 2), (6, 1), (6, 3))
    )


def _quotient(eps: Fraction, levels: int, ancestor: int) -> Fraction:
    exact = enumerated(1 - eps / 2, 1 - eps, levels, ancestor)  # rho_0 = 2 P[y_1=0] - 1 = 1 - eps
    return (exact - 1 + Fraction(ancestor, levels)) / eps


def _rise(levels: int, ancestor: int, form: Form) -> float:
    at_one, at_zero = (
        hblt.near_certain_expansion(eps, levels=levels, ancestor=ancestor, form=form)
        for eps in (1.0, 0.0)
    )
    return at_one - at_zero


ERRATUM = Erratum(
    number=11,
    where="Eqn. 8",
    printed="P = 1 - H/L + O(eps^2)",
    corrected="P = 1 - H/L + eps H(2H - L)/(2L) + O(eps^2)",
    evidence=evidence,
)

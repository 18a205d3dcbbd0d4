"""What an erratum is: two formulas and a judge that neither of them wrote."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One number computed three ways."""

    quantity: str
    """What the number is and in which setting, so that a reader can redo it."""
    judge: str
    """How `truth` was found without either form: an integrator, a sampler, an enumeration."""
    truth: float
    printed: float
    corrected: float
    tolerance: float
    """How far from `truth` a right formula may be: the judge's own error, absolute."""

    @property
    def printed_fails(self) -> bool:
        return not abs(self.printed - self.truth) <= self.tolerance

    @property
    def corrected_holds(self) -> bool:
        return abs(self.corrected - self.truth) <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """A statement of arXiv:2310.00535, its addendum or its slides that gives wrong numbers."""

    number: int
    where: str
    """Place in the paper: `Theorem 2, Eqn. 4`."""
    printed: str
    """The formula as printed, in plain text."""
    corrected: str
    """The formula that holds, in plain text."""
    evidence: Callable[[], tuple[Evidence, ...]]
    """Computes the numbers. At least one entry refutes the print and confirms the correction."""

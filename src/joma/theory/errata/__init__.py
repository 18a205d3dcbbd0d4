"""Where the paper's print is wrong: one file per erratum, each with its numbers computed live.

`joma errata` prints them. The numbering follows `docs/explanation/errata.md`.
"""

from joma._core.registry import Registry

__all__ = ["registry"]

registry = Registry("joma.theory.errata", "ERRATUM")

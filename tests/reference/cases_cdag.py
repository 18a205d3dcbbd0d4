"""CDAG Theorem 1."""

from joma.theory import cdag


def bound(theta):
    return {"C4": cdag.lower_bound(cdag.Angles(*theta.tolist()))}


def counterexample():
    return {"corr": cdag.correlation(cdag.counterexample())}


ADAPTERS = {"cdag.C4": bound, "cdag.counterexample": counterexample}

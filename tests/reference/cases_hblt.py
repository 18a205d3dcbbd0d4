"""Theorem 5 and Eqn. 8."""

from joma.theory import hblt


def probability(rho, rho0, L, H):
    return {
        "P": hblt.cooccurrence(rho, rho0, levels=L, ancestor=H),
        "first_order": hblt.near_certain_expansion(0.1, levels=L, ancestor=H, form="printed"),
    }


def coefficient(L, H):
    return {
        "coefficient": hblt.near_certain_slope(L, H),
        "P_at_1e3": hblt.cooccurrence_near_certain(1e-3, 1e-3, levels=L, ancestor=H),
    }


ADAPTERS = {"thm5.P": probability, "thm5.coeff": coefficient}

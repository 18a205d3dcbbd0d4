"""Figure 4."""

import numpy as np

from joma.theory import normalised


def limit_entropy(mu, T):
    return {"entropy": normalised.entropy(mu[None], divisor=float(T))[0]}


def euler(step):
    v = normalised.euler()[step]
    return {"v": v, "entropy": normalised.entropy(v[None])[0]}


def exact(tau):
    tau = np.array([tau])
    v = -normalised.MU * np.expm1(-normalised.path(tau))
    return {"t": normalised.clock(tau)[0], "entropy": normalised.entropy(v)[0], "v": v[0]}


ADAPTERS = {"fig4.limit_entropy": limit_entropy, "fig4.euler": euler, "fig4.exact": exact}

"""Theorem 2 and its neighbours."""

import numpy as np

from joma.theory import linear


def v(t, Delta, A, T, kappa, v0, c):
    delta, setting = np.array([Delta]), {"temperature": T, "kappa": kappa, "c": c}
    path = linear.solution(np.array([t]), delta, normaliser=A, v0=v0, **setting)
    return {"v": path[0, 0], "z": linear.logits(path, **setting)[0, 0]}


def blowup(Delta, A, T, kappa):
    delta = np.array([Delta])
    return {"T_star": linear.blowup_time(delta, normaliser=A, temperature=T, kappa=kappa)}


def losers(Delta):
    frozen = linear.near_blowup(np.array([0.0]), Delta)[0]
    return {"v": frozen[np.isfinite(frozen)]}


def near_blowup(eps):
    return {"v": linear.near_blowup(np.array([eps]), np.array([1.0]))[0, 0]}


def invariant(t, Delta, A):
    path = linear.solution(np.array([t]), Delta, normaliser=A)[0]
    return {
        "good": linear.invariant(path, Delta),
        "printed": linear.invariant(path, Delta, form="printed"),
    }


def normalised(t, Delta):
    times = np.array([t])
    return {
        "v": linear.softmax_solution(times, Delta)[0],
        "one_minus_s_Dmax": np.exp(linear.softmax_log_gap(times, Delta)[0]),
    }


def linear_attention(t, Delta, A, z0):
    path = linear.linear_attention(np.array([t]), np.array([Delta]), z0=z0, normaliser=A)
    return {"v": path[0][0, 0], "z": path[1][0, 0]}


ADAPTERS = {
    "thm2.v": v,
    "thm2.blowup": blowup,
    "thm2.losers": losers,
    "thm2.near_blowup": near_blowup,
    "thm2.invariant": invariant,
    "thm2.normalised": normalised,
    "thm1.linear_attention": linear_attention,
}

"""Eqn. 6, Theorem 4 and Lemmas 6 and 7."""

import numpy as np

from joma.theory import convergence, nonlinear


def lemma6():
    maximum = convergence.lemma6_maximum()
    return {"argmax": maximum.at, "max": maximum.value, "bound": 1 / np.sqrt(2)}


def lemma7():
    maximum = convergence.lemma7_maximum()
    at_2 = convergence.lemma7(np.array([2.0]))[0]
    return {"argmax": maximum.at, "max": maximum.value, "G_at_2": at_2}


def time(mu, L):
    at = np.array([L]), np.array([mu])
    return {"F": nonlinear.time_to_reach(*at)[0], "residual": nonlinear.remainder(*at)[0]}


def limit(mu):
    return {"R_inf": nonlinear.remainder_limit(np.array([mu]))[0]}


def supremum():
    maximum = convergence.largest_remainder()
    return {
        "argmax_mu": maximum.at,
        "sup": maximum.value,
        "paper_eqn88": convergence.remainder_bound(form="printed"),
        "paper_thm4": convergence.lag_bound(form="printed"),
    }


def ratio(mu_j, mu_k, L_k):
    at = np.array([L_k]), mu_j, mu_k
    return {
        "ratio": convergence.ratio(*at)[0],
        "Lambda": convergence.deviation(*at)[0],
        "lambda_jk": convergence.lag(*at)[0],
    }


def threshold(mu_k):
    return {
        "printed": convergence.threshold(mu_k, form="printed"),
        "correct": convergence.threshold(mu_k),
    }


def v(t, mu):
    at = np.array([t]), np.array([mu])
    return {"L": nonlinear.progress(*at)[0, 0], "v": nonlinear.solution(*at)[0, 0]}


def linear_attention(L, mu, c):
    mu = np.array([mu])
    return {
        "t": nonlinear.linear_attention_time(np.array([L]), mu, c=c)[0],
        "rate": nonlinear.linear_attention_rate(mu, c=c)[0],
    }


ADAPTERS = {
    "lemma6.max": lemma6,
    "lemma7.max": lemma7,
    "thm4.F": time,
    "thm4.R_inf": limit,
    "thm4.sup": supremum,
    "thm4.ratio": ratio,
    "thm4.threshold": threshold,
    "eqn6.v": v,
    "eqn6.linear_attention": linear_attention,
}

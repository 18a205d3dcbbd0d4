"""Scan&Snap Theorems 3 and 4."""

import numpy as np

from joma.theory import scan_snap


def pulled(t, M, K, eta_Y, eta_Z, C0):
    decoder = scan_snap.Decoder(vocabulary=M, classes=K, rate=eta_Y)
    t = np.array([t])
    return {
        "u": decoder.margin(t)[0],
        "gamma": decoder.signal(t)[0],
        "B": scan_snap.pull(t, decoder, rate=eta_Z, c_0=C0)[0],
        "slide": scan_snap.pull(t, decoder, rate=eta_Z, c_0=C0, form="printed")[0],
    }


def logits(p, B):
    z = scan_snap.distinct_logits(np.array([B]), p)
    return {
        "tau": scan_snap.clock(z, p)[0],
        "z": z[0],
        "chi": scan_snap.gain_factor(z)[0],
        "r12": scan_snap.relative_gain(z, p, token=0, rival=1)[0],
    }


ADAPTERS = {"scansnap.B": pulled, "scansnap.z": logits}

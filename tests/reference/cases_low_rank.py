"""Several hidden nodes, linear activation."""

import numpy as np

from joma.theory import low_rank


def low_rank_case(Delta, t_over_Tstar):
    end = low_rank.blowup_time(Delta)
    v = low_rank.solution(np.array([t_over_Tstar * end]), Delta)
    return {
        "T_star": end,
        "V": v[0].ravel(),
        "srank_V": low_rank.stable_rank(v)[0],
        "srank_dV": low_rank.stable_rank(low_rank.velocity_direction(v, Delta))[0],
    }


ADAPTERS = {"kgt1": low_rank_case}

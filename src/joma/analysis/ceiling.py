"""The largest entropy that attention can have, in nats."""

import math


def causal_ceiling(length: int) -> float:
    r"""Mean entropy of uniform causal rows, $\ln(T!)/T$: query t sees t + 1 keys.

    Example:
        >>> round(causal_ceiling(35), 3)  # the authors' sequence length
        2.632
    """
    if length < 1:
        raise ValueError(f"A sequence has at least one token; got length = {length}.")
    return math.lgamma(length + 1) / length

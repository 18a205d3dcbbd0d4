"""How metrics meet a live model: the contract of a probe, and `observe`."""

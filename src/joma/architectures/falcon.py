"""Falcon, with or without shared keys. Its attention is not behind the transformers interface."""

from dataclasses import replace

from joma.architectures.bloom import ARCHITECTURE as BLOOM

ARCHITECTURE = replace(
    BLOOM,
    model_types=("falcon",),
    rotary="halves",
    note="Observed through its own scaled_dot_product_attention or softmax.",
)

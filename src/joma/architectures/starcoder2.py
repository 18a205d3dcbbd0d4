"""StarCoder2: Llama's attention, an MLP with the names of GPT-2 (stored as nn.Linear)."""

from dataclasses import replace

from joma.architectures.base import Matrix, Mlp
from joma.architectures.llama import ARCHITECTURE as LLAMA

ARCHITECTURE = replace(
    LLAMA,
    model_types=("starcoder2",),
    mlps=(
        Mlp(
            lower=(Matrix(name="layers.{layer}.mlp.c_fc.weight"),),
            upper=Matrix(name="layers.{layer}.mlp.c_proj.weight"),
        ),
    ),
)

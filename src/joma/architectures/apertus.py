"""Apertus: Llama's names, without a gate."""

from dataclasses import replace

from joma.architectures.base import Matrix, Mlp
from joma.architectures.llama import ARCHITECTURE as LLAMA

ARCHITECTURE = replace(
    LLAMA,
    model_types=("apertus",),
    mlps=(
        Mlp(
            lower=(Matrix(name="layers.{layer}.mlp.up_proj.weight"),),
            upper=Matrix(name="layers.{layer}.mlp.down_proj.weight"),
        ),
    ),
)

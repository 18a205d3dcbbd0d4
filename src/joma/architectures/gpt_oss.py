"""GPT-OSS: experts stored (in, out), gate and up in turns, attention with a learned sink."""

from dataclasses import replace

from joma.architectures.base import Matrix, Mlp
from joma.architectures.llama import ARCHITECTURE as LLAMA

_STACK = "layers.{layer}.mlp.experts.gate_up_proj"

ARCHITECTURE = replace(
    LLAMA,
    model_types=("gpt_oss",),
    mlps=(
        Mlp(
            lower=(
                Matrix(name=_STACK, role="mlp.gate", part="even", stacked=True, transposed=True),
                Matrix(name=_STACK, role="mlp.up", part="odd", stacked=True, transposed=True),
            ),
            upper=Matrix(
                name="layers.{layer}.mlp.experts.down_proj", stacked=True, transposed=True
            ),
        ),
    ),
    note="The learned sink of each head is part of the attention that is observed.",
)

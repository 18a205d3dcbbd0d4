"""Mixtral, and mixtures of experts with the same blocks (Qwen, OLMoE).

A live model stacks its experts into one tensor; published files keep one tensor per expert.
"""

from dataclasses import replace

from joma.architectures.base import Matrix, Mlp
from joma.architectures.llama import ARCHITECTURE as LLAMA

_STACK = "layers.{layer}.mlp.experts.gate_up_proj"
_OLD = "layers.{layer}.block_sparse_moe.experts.{expert}"


def _gated(inside: str, role: str = "mlp") -> Mlp:
    return Mlp(
        lower=(
            Matrix(name=f"{inside}.gate_proj.weight", role=f"{role}.gate"),
            Matrix(name=f"{inside}.up_proj.weight", role=f"{role}.up"),
        ),
        upper=Matrix(name=f"{inside}.down_proj.weight"),
    )


ARCHITECTURE = replace(
    LLAMA,
    model_types=("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"),
    mlps=(
        Mlp(
            lower=(
                Matrix(name=_STACK, role="mlp.gate", part="first half", stacked=True),
                Matrix(name=_STACK, role="mlp.up", part="second half", stacked=True),
            ),
            upper=Matrix(name="layers.{layer}.mlp.experts.down_proj", stacked=True),
        ),
        Mlp(
            lower=(
                Matrix(name=f"{_OLD}.w1.weight", role="mlp.gate"),
                Matrix(name=f"{_OLD}.w3.weight", role="mlp.up"),
            ),
            upper=Matrix(name=f"{_OLD}.w2.weight"),
        ),
        _gated("layers.{layer}.mlp.experts.{expert}"),
        _gated("layers.{layer}.mlp.shared_expert", "mlp.shared"),
        _gated("layers.{layer}.mlp"),
    ),
    note="One place per expert.",
)

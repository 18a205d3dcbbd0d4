"""Phi-3 and Phi-4: gate and up in one tensor, queries, keys and values in another."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

_GATE_UP = "layers.{layer}.mlp.gate_up_proj.weight"
_FUSED = "layers.{layer}.self_attn.qkv_proj.weight"

ARCHITECTURE = Architecture(
    model_types=("phi3",),
    embedding="embed_tokens.weight",
    mlps=(
        Mlp(
            lower=(
                Matrix(name=_GATE_UP, role="mlp.gate", part="first half"),
                Matrix(name=_GATE_UP, role="mlp.up", part="second half"),
            ),
            upper=Matrix(name="layers.{layer}.mlp.down_proj.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="layers.{layer}.self_attn",
            query=_FUSED,
            key=_FUSED,
            value=_FUSED,
            output="layers.{layer}.self_attn.o_proj.weight",
            order="blocks",
        ),
    ),
    rotary="halves",
)

"""Phi-1, Phi-1.5 and Phi-2."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("phi",),
    embedding="embed_tokens.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="layers.{layer}.mlp.fc1.weight"),),
            upper=Matrix(name="layers.{layer}.mlp.fc2.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="layers.{layer}.self_attn",
            query="layers.{layer}.self_attn.q_proj.weight",
            key="layers.{layer}.self_attn.k_proj.weight",
            value="layers.{layer}.self_attn.v_proj.weight",
            output="layers.{layer}.self_attn.dense.weight",
        ),
    ),
    rotary="halves",
)

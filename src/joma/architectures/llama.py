"""Llama, and the many families that kept its names."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "olmo",
        "olmo2",
        "olmo3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "smollm3",
        "stablelm",
        "granite",
    ),
    embedding="embed_tokens.weight",
    mlps=(
        Mlp(
            lower=(
                Matrix(name="layers.{layer}.mlp.gate_proj.weight", role="mlp.gate"),
                Matrix(name="layers.{layer}.mlp.up_proj.weight", role="mlp.up"),
            ),
            upper=Matrix(name="layers.{layer}.mlp.down_proj.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="layers.{layer}.self_attn",
            query="layers.{layer}.self_attn.q_proj.weight",
            key="layers.{layer}.self_attn.k_proj.weight",
            value="layers.{layer}.self_attn.v_proj.weight",
            output="layers.{layer}.self_attn.o_proj.weight",
        ),
    ),
    rotary="halves",
)

"""OPT."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("opt",),
    embedding="decoder.embed_tokens.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="decoder.layers.{layer}.fc1.weight"),),
            upper=Matrix(name="decoder.layers.{layer}.fc2.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="decoder.layers.{layer}.self_attn",
            query="decoder.layers.{layer}.self_attn.q_proj.weight",
            key="decoder.layers.{layer}.self_attn.k_proj.weight",
            value="decoder.layers.{layer}.self_attn.v_proj.weight",
            output="decoder.layers.{layer}.self_attn.out_proj.weight",
        ),
    ),
    note="ReLU units: the charge of each unit is conserved by gradient flow.",
)

"""MPT. Its attention is not behind the transformers interface."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

_FUSED = "blocks.{layer}.attn.Wqkv.weight"

ARCHITECTURE = Architecture(
    model_types=("mpt",),
    embedding="wte.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="blocks.{layer}.ffn.up_proj.weight"),),
            upper=Matrix(name="blocks.{layer}.ffn.down_proj.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="blocks.{layer}.attn",
            query=_FUSED,
            key=_FUSED,
            value=_FUSED,
            output="blocks.{layer}.attn.out_proj.weight",
            order="blocks",
        ),
    ),
    note="Observed through its own softmax, ALiBi included.",
)

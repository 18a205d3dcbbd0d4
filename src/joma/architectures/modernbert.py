"""ModernBERT. The half of `Wi` that passes the activation is the gate."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

_FUSED = "layers.{layer}.attn.Wqkv.weight"

ARCHITECTURE = Architecture(
    model_types=("modernbert",),
    embedding="embeddings.tok_embeddings.weight",
    mlps=(
        Mlp(
            lower=(
                Matrix(name="layers.{layer}.mlp.Wi.weight", role="mlp.gate", part="first half"),
                Matrix(name="layers.{layer}.mlp.Wi.weight", role="mlp.up", part="second half"),
            ),
            upper=Matrix(name="layers.{layer}.mlp.Wo.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="layers.{layer}.attn",
            query=_FUSED,
            key=_FUSED,
            value=_FUSED,
            output="layers.{layer}.attn.Wo.weight",
            order="blocks",
        ),
    ),
    rotary="halves",
)

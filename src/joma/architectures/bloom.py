"""BLOOM. Its attention is not behind the transformers interface."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

_FUSED = "h.{layer}.self_attention.query_key_value.weight"

ARCHITECTURE = Architecture(
    model_types=("bloom",),
    embedding="word_embeddings.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="h.{layer}.mlp.dense_h_to_4h.weight"),),
            upper=Matrix(name="h.{layer}.mlp.dense_4h_to_h.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="h.{layer}.self_attention",
            query=_FUSED,
            key=_FUSED,
            value=_FUSED,
            output="h.{layer}.self_attention.dense.weight",
            order="groups",
        ),
    ),
    note="Observed through its own softmax, ALiBi included.",
)

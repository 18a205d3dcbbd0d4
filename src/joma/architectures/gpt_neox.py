"""GPT-NeoX and Pythia."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

_FUSED = "layers.{layer}.attention.query_key_value.weight"

ARCHITECTURE = Architecture(
    model_types=("gpt_neox",),
    embedding="embed_in.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="layers.{layer}.mlp.dense_h_to_4h.weight"),),
            upper=Matrix(name="layers.{layer}.mlp.dense_4h_to_h.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="layers.{layer}.attention",
            query=_FUSED,
            key=_FUSED,
            value=_FUSED,
            output="layers.{layer}.attention.dense.weight",
            order="groups",
        ),
    ),
    rotary="halves",
)

"""ViT: the names of current modules, and those of the published files."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("vit",),
    embedding=None,
    mlps=(
        Mlp(
            lower=(Matrix(name="layers.{layer}.mlp.fc1.weight"),),
            upper=Matrix(name="layers.{layer}.mlp.fc2.weight"),
        ),
        Mlp(
            lower=(Matrix(name="encoder.layer.{layer}.intermediate.dense.weight"),),
            upper=Matrix(name="encoder.layer.{layer}.output.dense.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="layers.{layer}.attention",
            query="layers.{layer}.attention.q_proj.weight",
            key="layers.{layer}.attention.k_proj.weight",
            value="layers.{layer}.attention.v_proj.weight",
            output="layers.{layer}.attention.o_proj.weight",
        ),
        Attention(
            module="encoder.layer.{layer}.attention.attention",
            query="encoder.layer.{layer}.attention.attention.query.weight",
            key="encoder.layer.{layer}.attention.attention.key.weight",
            value="encoder.layer.{layer}.attention.attention.value.weight",
            output="encoder.layer.{layer}.attention.output.dense.weight",
        ),
    ),
)

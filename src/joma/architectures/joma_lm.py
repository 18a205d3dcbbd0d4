"""Our small language model (`joma.models.language`). Its MLP is square, so shapes cannot tell."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("joma_lm",),
    embedding="embedding.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="blocks.{layer}.mlp.lower.weight"),),
            upper=Matrix(name="blocks.{layer}.mlp.upper.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="blocks.{layer}.attention",
            query="blocks.{layer}.attention.query.weight",
            key="blocks.{layer}.attention.key.weight",
            value="blocks.{layer}.attention.value.weight",
            output="blocks.{layer}.attention.output.weight",
        ),
    ),
)

"""DistilBERT."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("distilbert",),
    embedding="embeddings.word_embeddings.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="transformer.layer.{layer}.ffn.lin1.weight"),),
            upper=Matrix(name="transformer.layer.{layer}.ffn.lin2.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="transformer.layer.{layer}.attention",
            query="transformer.layer.{layer}.attention.q_lin.weight",
            key="transformer.layer.{layer}.attention.k_lin.weight",
            value="transformer.layer.{layer}.attention.v_lin.weight",
            output="transformer.layer.{layer}.attention.out_lin.weight",
        ),
    ),
)

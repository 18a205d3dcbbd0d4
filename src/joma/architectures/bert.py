"""BERT, RoBERTa, ELECTRA and others with the blocks of BERT."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    embedding="embeddings.word_embeddings.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="encoder.layer.{layer}.intermediate.dense.weight"),),
            upper=Matrix(name="encoder.layer.{layer}.output.dense.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="encoder.layer.{layer}.attention.self",
            query="encoder.layer.{layer}.attention.self.query.weight",
            key="encoder.layer.{layer}.attention.self.key.weight",
            value="encoder.layer.{layer}.attention.self.value.weight",
            output="encoder.layer.{layer}.attention.output.dense.weight",
        ),
    ),
)

"""T5, with one lower matrix (ReLU) or gate and up (v1.1, FLAN-T5, mT5)."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp


def _mlps(tower: str, sublayer: int) -> tuple[Mlp, ...]:
    inside = f"{tower}.block.{{layer}}.layer.{sublayer}.DenseReluDense"
    upper = Matrix(name=f"{inside}.wo.weight")
    gated = (
        Matrix(name=f"{inside}.wi_0.weight", role="mlp.gate"),
        Matrix(name=f"{inside}.wi_1.weight", role="mlp.up"),
    )
    return (
        Mlp(lower=(Matrix(name=f"{inside}.wi.weight"),), upper=upper, tower=tower),
        Mlp(lower=gated, upper=upper, tower=tower),
    )


def _attention(module: str, site: str) -> Attention:
    return Attention(
        module=module,
        query=f"{module}.q.weight",
        key=f"{module}.k.weight",
        value=f"{module}.v.weight",
        output=f"{module}.o.weight",
        site=site,
    )


ARCHITECTURE = Architecture(
    model_types=("t5", "mt5"),
    embedding="shared.weight",
    mlps=_mlps("encoder", 1) + _mlps("decoder", 2),
    attentions=(
        _attention("encoder.block.{layer}.layer.0.SelfAttention", "encoder.self"),
        _attention("decoder.block.{layer}.layer.0.SelfAttention", "decoder.self"),
        _attention("decoder.block.{layer}.layer.1.EncDecAttention", "decoder.cross"),
    ),
    note="A learned position bias is added to the scores, which are not scaled.",
)

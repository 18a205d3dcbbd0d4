"""GPT-2. Its Conv1D stores matrices as (in, out)."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

_FUSED = "h.{layer}.attn.c_attn.weight"

ARCHITECTURE = Architecture(
    model_types=("gpt2",),
    embedding="wte.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="h.{layer}.mlp.c_fc.weight", transposed=True),),
            upper=Matrix(name="h.{layer}.mlp.c_proj.weight", transposed=True),
        ),
    ),
    attentions=(
        Attention(
            module="h.{layer}.attn",
            query=_FUSED,
            key=_FUSED,
            value=_FUSED,
            output="h.{layer}.attn.c_proj.weight",
            order="blocks",
            transposed=True,
        ),
    ),
)

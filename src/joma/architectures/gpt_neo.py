"""GPT-Neo: the names of GPT-2, stored as nn.Linear. Not behind the transformers interface."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("gpt_neo",),
    embedding="wte.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="h.{layer}.mlp.c_fc.weight"),),
            upper=Matrix(name="h.{layer}.mlp.c_proj.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="h.{layer}.attn.attention",
            query="h.{layer}.attn.attention.q_proj.weight",
            key="h.{layer}.attn.attention.k_proj.weight",
            value="h.{layer}.attn.attention.v_proj.weight",
            output="h.{layer}.attn.attention.out_proj.weight",
        ),
    ),
    note="Observed through its own softmax; scores are not scaled.",
)

"""GPT-J. Its attention is not behind the transformers interface."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

ARCHITECTURE = Architecture(
    model_types=("gptj",),
    embedding="wte.weight",
    mlps=(
        Mlp(
            lower=(Matrix(name="h.{layer}.mlp.fc_in.weight"),),
            upper=Matrix(name="h.{layer}.mlp.fc_out.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="h.{layer}.attn",
            query="h.{layer}.attn.q_proj.weight",
            key="h.{layer}.attn.k_proj.weight",
            value="h.{layer}.attn.v_proj.weight",
            output="h.{layer}.attn.out_proj.weight",
        ),
    ),
    rotary="neighbours",
    note="Observed through its own softmax.",
)

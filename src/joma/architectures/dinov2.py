"""DINOv2: MLP or SwiGLU, in the names of current modules and of the published files."""

from joma.architectures.base import Architecture, Attention, Matrix, Mlp

_FUSED = "encoder.layer.{layer}.mlp.weights_in.weight"

ARCHITECTURE = Architecture(
    model_types=("dinov2", "dinov2_with_registers"),
    embedding=None,
    mlps=(
        Mlp(
            lower=(Matrix(name="encoder.layer.{layer}.mlp.fc1.weight"),),
            upper=Matrix(name="encoder.layer.{layer}.mlp.fc2.weight"),
        ),
        Mlp(
            lower=(
                Matrix(name="encoder.layer.{layer}.mlp.gate_proj.weight", role="mlp.gate"),
                Matrix(name="encoder.layer.{layer}.mlp.up_proj.weight", role="mlp.up"),
            ),
            upper=Matrix(name="encoder.layer.{layer}.mlp.down_proj.weight"),
        ),
        Mlp(
            lower=(
                Matrix(name=_FUSED, role="mlp.gate", part="first half"),
                Matrix(name=_FUSED, role="mlp.up", part="second half"),
            ),
            upper=Matrix(name="encoder.layer.{layer}.mlp.weights_out.weight"),
        ),
    ),
    attentions=(
        Attention(
            module="encoder.layer.{layer}.attention",
            query="encoder.layer.{layer}.attention.q_proj.weight",
            key="encoder.layer.{layer}.attention.k_proj.weight",
            value="encoder.layer.{layer}.attention.v_proj.weight",
            output="encoder.layer.{layer}.attention.o_proj.weight",
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

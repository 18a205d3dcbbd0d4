"""CodeGen: GPT-J with queries, keys and values fused in an order that depends on its training."""

from dataclasses import replace

from joma.architectures.base import Attention
from joma.architectures.gptj import ARCHITECTURE as GPTJ

ARCHITECTURE = replace(
    GPTJ,
    model_types=("codegen",),
    attentions=(Attention(module="h.{layer}.attn"),),
    note="Observed through its own softmax; tensors of single heads are not given.",
)

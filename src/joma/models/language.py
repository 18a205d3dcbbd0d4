"""The small Transformer language model of Figures 6 and 8, with a switch for each of its parts.

Known from the authors' published code (facts only): both widths 200, one head, dropout .2, torch's
post-norm encoder layers under a causal mask, every layer a copy of one initialisation. Ours: what
else torch's language-model tutorial has, on which such scripts build (embedding scaled by the root
of its width, sinusoidal positions, read-out of its own, both drawn from U(-.1, .1)); all switches.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.models.activations import Activation, activation

Part: TypeAlias = Literal["embedding", "attention", "norm", "readout"]


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """What a language model is, before it is trained. Defaults are those of Figure 6."""

    vocab: int = 28_782  # WikiText-2 under the basic-english tokenisation
    layers: int = 1  # Figure 6: 1, 2, 5, 10
    embed: int = 200  # the authors' emsize
    hidden: int = 200  # the authors' d_hid, of the lower MLP matrix
    num_heads: int = 1  # the authors'
    dropout: float = 0.2  # the authors'; also on attention, as torch's layers do
    activation: str | Activation = "relu"  # torch's encoder layer
    mlp: Literal["full", "frozen", "none"] = "full"  # the controls of Figure 6
    frozen: tuple[Part, ...] = ()  # parts that keep their initial values
    norm: Literal["layer", "rms", "none"] = "layer"  # torch's encoder layer
    norm_place: Literal["post", "pre"] = "post"  # the same; "pre" also normalises before read-out
    residual: bool = True  # torch's encoder layer
    positions: Literal["sinusoidal", "none"] = "sinusoidal"  # ours, see above
    max_length: int = 512  # of positions; the authors train at 35
    same_start: bool = True  # the authors': layers are deep copies of one initialisation
    bf16_readout: bool = False  # halves a step at the full vocabulary; loss moves by .002

    model_type: ClassVar[str] = "joma_lm"  # the family file that names its tensors

    def __post_init__(self) -> None:
        if self.embed % self.num_heads:
            raise JomaError(
                f"embed must be a multiple of num_heads; got {self.embed} and {self.num_heads}."
            )
        if self.embed % 2 and self.positions == "sinusoidal":
            raise JomaError(f"Sinusoidal positions need an even embed; got {self.embed}.")


class CausalAttention(nn.Module):
    """Attention to this and earlier positions, by torch's fused kernel."""

    def __init__(self, config: LanguageConfig) -> None:
        """Weights are left empty; `LanguageModel` fills them."""
        super().__init__()
        self.config = config
        self.query = _linear(config.embed, config.embed)
        self.key = _linear(config.embed, config.embed)
        self.value = _linear(config.embed, config.embed)
        self.output = _linear(config.embed, config.embed)

    def forward(self, x: Float[Tensor, "batch query embed"]) -> Float[Tensor, "batch query embed"]:
        heads = (self.config.num_heads, -1)
        q, k, v = (
            part(x).unflatten(-1, heads).transpose(1, 2)  # [batch, head, query, width]
            for part in (self.query, self.key, self.value)
        )
        dropout = self.config.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return out


class Mlp(nn.Module):
    """The lower matrix, the activation and the upper matrix."""

    def __init__(self, config: LanguageConfig) -> None:
        """Weights are left empty; `LanguageModel` fills them."""
        super().__init__()
        self.lower = _linear(config.embed, config.hidden)
        self.phi = activation(config.activation)
        self.dropout = nn.Dropout(config.dropout)
        self.upper = _linear(config.hidden, config.embed)

    def forward(self, x: Float[Tensor, "batch query embed"]) -> Float[Tensor, "batch query embed"]:
        out: Tensor = self.upper(self.dropout(self.phi(self.lower(x))))
        return out


class Block(nn.Module):
    """Attention, then the MLP unless there is none."""

    def __init__(self, config: LanguageConfig) -> None:
        """Weights are left empty; `LanguageModel` fills them."""
        super().__init__()
        self.config = config
        self.attention = CausalAttention(config)
        self.attention_norm = _norm(config)
        self.mlp = None if config.mlp == "none" else Mlp(config)
        self.mlp_norm = None if config.mlp == "none" else _norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "batch query embed"]) -> Float[Tensor, "batch query embed"]:
        x = self._through(x, self.attention, self.attention_norm)
        if self.mlp is not None and self.mlp_norm is not None:
            x = self._through(x, self.mlp, self.mlp_norm)
        return x

    def _through(self, x: Tensor, part: nn.Module, norm: nn.Module) -> Tensor:
        pre = self.config.norm_place == "pre"
        new: Tensor = self.dropout(part(norm(x) if pre else x))
        new = x + new if self.config.residual else new
        return new if pre else norm(new)


class LanguageModel(nn.Module):
    """A decoder over `vocab` tokens, initialised from `seed`; returns logits of the next token.

    Attention is seen by `joma.observe` layer by layer, and the family file `joma_lm` names the
    lower MLP matrices, which shapes alone cannot tell where both widths are 200.
    """

    positions: Tensor

    def __init__(self, config: LanguageConfig, seed: int = 0) -> None:
        """The global random state is neither read nor moved; dropout uses it in training."""
        super().__init__()
        self.config = config
        self.embedding = _embedding(config.vocab, config.embed)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = _norm(config) if config.norm_place == "pre" else nn.Identity()
        self.readout = _linear(config.embed, config.vocab)
        sines = sinusoids(config.max_length, config.embed)
        self.register_buffer("positions", sines, persistent=False)
        initialise(self, torch.Generator().manual_seed(seed))
        _freeze(self)

    def forward(self, tokens: Int[Tensor, "batch query"]) -> Float[Tensor, "batch query vocab"]:
        length = tokens.shape[1]
        x = math.sqrt(self.config.embed) * self.embedding(tokens)
        if self.config.positions == "sinusoidal":
            if length > self.config.max_length:
                raise JomaError(
                    f"Sequences may have {self.config.max_length} tokens; got {length}. "
                    "Build the model with a larger max_length."
                )
            x = x + self.positions[:length]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self._read(self.norm(x))

    def _read(self, x: Float[Tensor, "batch query embed"]) -> Float[Tensor, "batch query vocab"]:
        readout = self.readout
        if not self.config.bf16_readout:
            out: Tensor = readout(x)
            return out
        low = torch.bfloat16
        return F.linear(x.to(low), readout.weight.to(low), readout.bias.to(low)).to(x.dtype)


@torch.no_grad()
def initialise(model: LanguageModel, generator: torch.Generator) -> None:
    """Fill every weight: the distributions of torch's own layers, from a generator of ours."""

    def uniform(tensor: Tensor, bound: float) -> None:
        tensor.uniform_(-bound, bound, generator=generator)

    uniform(model.embedding.weight, 0.1)
    uniform(model.readout.weight, 0.1)
    model.readout.bias.zero_()
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if number and model.config.same_start:
            block.load_state_dict(model.blocks[0].state_dict())
            continue
        attention, width = block.attention, model.config.embed
        for part in (attention.query, attention.key, attention.value):
            # torch keeps the three in one tensor: Xavier's bound is of a (3 embed, embed) matrix.
            uniform(part.weight, math.sqrt(6 / (4 * width)))
            part.bias.zero_()
        uniform(attention.output.weight, 1 / math.sqrt(width))
        attention.output.bias.zero_()
        if block.mlp is not None:
            for part in (block.mlp.lower, block.mlp.upper):
                uniform(part.weight, 1 / math.sqrt(part.in_features))
                uniform(part.bias, 1 / math.sqrt(part.in_features))


def sinusoids(length: int, embed: int) -> Float[Tensor, "query embed"]:
    """Sines (even columns) and cosines (odd) of the position, at wavelengths from 2π to 20000π."""
    position = torch.arange(length)[:, None]
    rate = torch.exp(-math.log(10_000.0) / embed * torch.arange(0, embed, 2))
    return torch.stack([torch.sin(position * rate), torch.cos(position * rate)], -1).flatten(1)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Made on the meta device: elsewhere torch would draw its weights from the global generator."""
    return nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")


def _embedding(vocab: int, embed: int) -> nn.Embedding:
    return nn.Embedding(vocab, embed, device="meta").to_empty(device="cpu")


def _norm(config: LanguageConfig) -> nn.Module:
    if config.norm == "layer":
        return nn.LayerNorm(config.embed)
    return nn.RMSNorm(config.embed, eps=1e-5) if config.norm == "rms" else nn.Identity()


def _freeze(model: LanguageModel) -> None:
    frozen = {*model.config.frozen} | ({"mlp"} if model.config.mlp == "frozen" else set())
    for name, parameter in model.named_parameters():
        words = name.split(".")
        word = words[2] if words[0] == "blocks" else words[0]
        if (word if word in ("embedding", "attention", "mlp", "readout") else "norm") in frozen:
            parameter.requires_grad_(False)

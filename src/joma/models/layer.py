r"""The layer of Eqn. 1 as a torch module: $h_k = \phi(w_k^\top f)$, $f = U_C b + u_q$.

It is trained by autograd under any loss of `joma.models.objectives`; `joma.theory.flow` computes
the same layer and its gradients by hand. Nothing here touches the global random state.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.models.activations import Activation, activation

Attention: TypeAlias = Literal["linear", "exp", "softmax"]
Embeddings: TypeAlias = Literal["one-hot", "orthonormal", "random"]
"""Unit vectors of the axes, a random rotation of them, or independent random unit vectors."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What a layer is, before it is trained. Defaults are the setting of Figure 2."""

    tokens: int = 20  # Figure 2, authors' script: 10 that tell classes apart + 10 that do not
    hidden: int = 20  # Figure 2: one node per class
    queries: int = 1  # Theorem 1 is about one; several share W and have a row of z each
    attention: Attention = "softmax"  # Figure 2; Theorem 1 is exact for the other two
    activation: str | Activation = "linear"  # Figure 2
    temperature: float = 0.5  # Figure 2, authors' script; the paper prints none, which is 1
    normaliser: float = 1.0  # $A$ of linear and exp attention; softmax has its own
    residual: bool = True  # u_q in Eqn. 1
    norm: Literal["none", "unit", "layer"] = "none"  # "unit" divides f by its length
    embeddings: Embeddings = "one-hot"  # Figure 2, authors' script
    embed: int | None = None  # as few as orthonormal vectors need: tokens + queries
    learned: bool = False  # train U_C and u_q too; the theory freezes them
    logits: Literal["free", "projected"] = "free"  # z is a parameter, or comes from W_Q and W_K
    head: int = 8  # rows of W_Q and W_K; section 14's stress table uses 8
    init_w: float = 0.01  # Figure 2, authors' script: N(0, .01^2)
    init_z: float = 0.01  # the same; linear attention cannot start from 0 (E16)
    init_qk: float = 0.1  # the smallest of the stress table's three scales


class Look(NamedTuple):
    """What one pass through the layer computes."""

    b: Float[Tensor, "samples tokens"]
    """Attention scores."""
    f: Float[Tensor, "samples embed"]
    """Input of the nodes."""
    a: Float[Tensor, "samples hidden"]
    """Pre-activations."""
    h: Float[Tensor, "samples hidden"]
    """Node outputs."""


class Layer(nn.Module):
    """A layer of Eqn. 1, initialised from `seed`.

    Parameters are `W` (node k is column k) and `z` (flat for one query, else a row per query), or
    `W_Q` and `W_K` in place of `z`. `U_C` and `u_q` are parameters if learned, else buffers.
    """

    W: Tensor
    U_C: Tensor
    u_q: Tensor

    def __init__(
        self, config: LayerConfig, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> None:
        """Numbers are drawn in float64 and rounded: a float32 layer starts where its twin does."""
        super().__init__()
        self.config = config
        self.phi = activation(config.activation)
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        tokens, queries = config.tokens, config.queries
        embed = tokens + queries if config.embed is None else config.embed
        self.W = nn.Parameter((config.init_w * normal(embed, config.hidden)).to(dtype))
        if config.logits == "free":
            shape = (tokens,) if queries == 1 else (queries, tokens)
            self.z = nn.Parameter((config.init_z * normal(*shape)).to(dtype))
        else:
            self.W_Q = nn.Parameter((config.init_qk * normal(config.head, embed)).to(dtype))
            self.W_K = nn.Parameter((config.init_qk * normal(config.head, embed)).to(dtype))

        vectors = _embeddings(config.embeddings, normal(embed, tokens + queries)).to(dtype)
        for name, value in (("U_C", vectors[:, :tokens]), ("u_q", vectors[:, tokens:])):
            if config.learned:
                self.register_parameter(name, nn.Parameter(value.clone()))
            else:
                self.register_buffer(name, value.clone())

    @property
    def v(self) -> Float[Tensor, "tokens hidden"]:
        r"""$V = U_C^\top W$, whose columns are the $v_k$."""
        return self.U_C.T @ self.W

    def logits(self) -> Float[Tensor, "*queries tokens"]:
        r"""$z$, or $z_q = U_C^\top W_K^\top W_Q u_q$ if logits are projected (Section 2)."""
        if self.config.logits == "free":
            return self.z
        z = (self.W_Q @ self.u_q).T @ (self.W_K @ self.U_C)
        return z[0] if self.config.queries == 1 else z

    def forward(
        self, x: Float[Tensor, "samples tokens"], query: Int[Tensor, " samples"] | None = None
    ) -> Float[Tensor, "samples hidden"]:
        """Node outputs for token frequencies `x`; `query` names each sample's row of `z`."""
        return self.look(x, query).h

    def look(
        self, x: Float[Tensor, "samples tokens"], query: Int[Tensor, " samples"] | None = None
    ) -> Look:
        """The same pass, with everything it computes on its way."""
        config = self.config
        if (query is None) != (config.queries == 1):
            given = "none was given" if query is None else "one was given"
            raise JomaError(
                f"A query per sample is needed exactly if the layer has several; it has "
                f"{config.queries} and {given}."
            )
        b = self.scores(x, query)
        f = b @ self.U_C.T
        if config.residual:
            f = f + (self.u_q.T if query is None else self.u_q.T[query])
        if config.norm == "unit":
            f = f / torch.linalg.vector_norm(f, dim=1, keepdim=True)
        elif config.norm == "layer":
            f = F.layer_norm(f, f.shape[1:])
        a = f @ self.W
        return Look(b, f, a, self.phi(a))

    def scores(
        self, x: Float[Tensor, "samples tokens"], query: Int[Tensor, " samples"] | None = None
    ) -> Float[Tensor, "samples tokens"]:
        r"""Attention scores $b = \sigma(z/T) \circ x / A$. A softmax over no token is `nan`."""
        z = self.logits()
        s = (z if query is None else z[query]) / self.config.temperature
        if self.config.attention == "linear":
            b: Tensor = s * x / self.config.normaliser
        elif self.config.attention == "exp":
            b = s.exp() * x / self.config.normaliser
        else:
            # Not softmax(s + ln x): in a tower x is trained too, and ln has no slope at 0.
            b = (s - s.detach().amax(-1, keepdim=True)).exp() * x
            b = b / b.sum(1, keepdim=True)
        return b


def _embeddings(
    kind: Embeddings, noise: Float[Tensor, "embed vectors"]
) -> Float[Tensor, "embed vectors"]:
    embed, vectors = noise.shape
    if kind == "random":
        return F.normalize(noise, dim=0)
    if embed < vectors:
        raise JomaError(
            f"{vectors} orthonormal embeddings (one per token and query) need embed >= {vectors}; "
            f'got {embed}. Leave embed out, or use embeddings="random".'
        )
    if kind == "one-hot":
        return torch.eye(embed, vectors, dtype=noise.dtype)
    rotated: Tensor = torch.linalg.qr(noise).Q
    return rotated

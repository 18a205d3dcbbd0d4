"""Layers of Eqn. 1 on top of each other, trained layer by layer or jointly."""

from collections.abc import Iterable
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.models.layer import Layer, LayerConfig


class Tower(nn.Module):
    """A stack of layers of Eqn. 1: what a node puts out is a token frequency of the next layer.

    The highest level is a linear read-out without bias, if `classes` is given (the trained upper
    layer of the stress table); each level is a member of `levels`. All levels start trainable.
    Softmax attention above ReLU is `nan` for a sample that leaves every node off: a softmax needs
    a token. Use exp or linear attention there.
    """

    def __init__(
        self,
        configs: Iterable[LayerConfig],
        classes: int | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Layer number i is initialised from `seed + i`, and the read-out with N(0, 1/hidden)."""
        super().__init__()
        chosen = tuple(configs)
        if not chosen:
            raise JomaError("A tower needs at least one layer; got no config.")
        if any(config.queries != 1 for config in chosen):
            raise JomaError("Layers of a tower have one query each; set queries=1 in every config.")
        for number, (below, above) in enumerate(pairwise(chosen), 1):
            if below.hidden != above.tokens:
                raise JomaError(
                    f"Layer {number} must have one token per node of the layer below, "
                    f"{below.hidden}; got tokens={above.tokens}."
                )
        self.levels = nn.ModuleList(Layer(c, seed + i, dtype) for i, c in enumerate(chosen))
        if classes is not None:
            self.levels.append(_readout(chosen[-1].hidden, classes, seed + len(chosen), dtype))

    def forward(self, x: Float[Tensor, "samples tokens"]) -> Float[Tensor, "samples outputs"]:
        """Outputs of the highest level."""
        return self.outputs(x)[-1]

    def outputs(self, x: Float[Tensor, "samples tokens"]) -> list[Float[Tensor, "samples _"]]:
        """Outputs of every level, from the input upwards."""
        seen = []
        for level in self.levels:
            x = level(x)
            seen.append(x)
        return seen

    def train_only(self, level: int | None) -> None:
        """Train that level and keep the others as they are; `None` trains all of them jointly.

        The paper says of layer-wise training that Assumption 1 is true. Levels above that do not
        move still send back a `g` that depends on what moves below; for a constant one, train
        the level under `objectives.stationary`.
        """
        if level is not None and not 0 <= level < len(self.levels):
            raise JomaError(f"level must lie in [0, {len(self.levels)}); got {level}.")
        for number, member in enumerate(self.levels):
            member.requires_grad_(level in (None, number))


def _readout(hidden: int, classes: int, seed: int, dtype: torch.dtype) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, hidden, generator=generator, dtype=torch.float64) / hidden**0.5
    readout = nn.Linear(hidden, classes, bias=False, device="meta")  # draws nothing there
    readout.weight = nn.Parameter(weight.to(dtype))
    return readout

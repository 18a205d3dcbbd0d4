r"""Class-conditional token frequencies: the data of Figures 2 and 3.

A sample *is* a class: $x[k] \in \mathbb R^{M_C}$ holds the frequencies of the context tokens given
class $k$, and sums to 1. There are as many samples as classes, so a full batch is the whole data
set and nothing is left to chance after the first draw.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from joma.data._seed import Seed, stream


@dataclass(frozen=True)
class TokenClasses:
    """How the frequencies are made. The defaults are those of the authors' script, not printed."""

    classes: int = 20
    banded: int = 10
    """Tokens that follow the class, in smooth data."""
    loose: int = 10
    """Tokens that do not."""
    kind: Literal["smooth", "random"] = "smooth"

    def __post_init__(self) -> None:
        if self.classes < 1 or min(self.banded, self.loose) < 0 or self.tokens < 1:
            raise ValueError(
                f"Token classes need at least one class and one token; got {self.classes} classes "
                f"and {self.banded} + {self.loose} tokens."
            )

    @property
    def tokens(self) -> int:
        """$M_C$."""
        return self.banded + self.loose


def frequencies(config: TokenClasses, seed: Seed) -> Float[Tensor, "samples tokens"]:
    r"""Token frequencies $x[k]$, one row per class $k$, in float64; each row sums to 1.

    Smooth: token $i$ of the first `banded` ones has weight $e^{-(i - 10k/K)^2/30}$ (with `banded`
    for 10), a bell that moves along the tokens with the class; the others are uniform on [0, 0.5).
    Random: all are uniform. The random weights of the loose tokens are the same in both kinds for
    one seed, before the rows are normalised.

    Example:
        >>> x = frequencies(TokenClasses(), seed=0)
        >>> x.shape, bool((x.sum(1) - 1).abs().max() < 1e-12)
        (torch.Size([20, 20]), True)
    """
    shape = (config.classes, config.tokens)
    weights = torch.rand(shape, generator=stream(seed), dtype=torch.float64) / 2
    if config.kind == "smooth":
        token = torch.arange(config.banded, dtype=torch.float64)
        centre = torch.arange(config.classes, dtype=torch.float64) * config.banded / config.classes
        weights[:, : config.banded] = torch.exp(-((token - centre[:, None]) ** 2) / 30)
    return weights / weights.sum(1, keepdim=True)

r"""The Gram matrix $W^T W$ in float64: all eigenvalues, or a proof that none is above a level.

Deterministic. Its rounding errors are those of the textbook, far below any tolerance of ours.
"""

from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from joma.metrics._rows import Rows
from joma.metrics._survey import UNIT

_ROWS: Final = 512  # at least, per update: otherwise re-reading the Gram matrix costs more
_PANEL: Final = 128  # columns at a time


def gram(rows: Rows, scale: float) -> Float[Tensor, "cols cols"]:
    """Gram matrix of the columns, summed over the owners of the rows."""
    cols = rows.shape[1]
    products = torch.zeros(cols, cols, dtype=torch.float64, device=rows.home(torch.float64))
    for block in rows.blocks(torch.float64, scale, least=_ROWS):
        for at in range(0, cols, _PANEL):  # on and above the diagonal
            products[at : at + _PANEL, at:].addmm_(block[:, at : at + _PANEL].mT, block[:, at:])
    upper = rows.total(products).triu()
    return upper + upper.triu(1).mT


def eigenvalues(products: Float[Tensor, "cols cols"]) -> Float[Tensor, " cols"]:
    """Eigenvalues of a Gram matrix, ascending, on the CPU; what rounding made negative is 0."""
    values: Tensor = torch.linalg.eigvalsh(products)
    return values.cpu().clamp(min=0.0)


def rounding(rows: int, cols: int, squares: float) -> float:
    r"""Error of an eigenvalue, at most, for squared Frobenius norm `squares`.

    $\|\mathrm{fl}(W^T W) - W^T W\| \le m u \|W\|_F^2$ in any order of summation, and the solver is
    backward stable: its error is a small multiple of $n u \|W\|^2$, taken as 8.
    """
    return (rows + 8 * cols) * UNIT * squares


def is_below(products: Float[Tensor, "cols cols"], level: float) -> bool:
    r"""Whether `level` minus the Gram matrix has a Cholesky factor.

    If so, no eigenvalue exceeds `level` by more than $(n + 1) n u$ of it (Higham, Theorem 10.3)
    and the error of the products.
    """
    shifted = products.neg()
    shifted.diagonal().add_(level)
    return int(torch.linalg.cholesky_ex(shifted).info) == 0

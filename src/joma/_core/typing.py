"""One vocabulary for arrays and axes, so that a shape means the same in every signature.

Axes, in jaxtyping strings:

    samples     rows of a data set, $i$
    tokens      context tokens, $M_C$, index $l$
    queries     query tokens, $M_Q$, index $m$
    hidden      hidden nodes (units of the lower MLP layer), $K$, index $k$
    embed       embedding dimension, $d$
    times       points of a trajectory
    clusters    data clusters, index $j$
    batch head query key width    of an attention call
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
else:
    Array = np.ndarray  # jaxtyping wants the bare class, mypy the parametrised one

Form: TypeAlias = Literal["corrected", "printed"]
"""`"corrected"` is what holds; `"printed"` is what the paper prints, there to be refuted."""

ScalarFunction: TypeAlias = Callable[[Array], Array]
"""An element-wise function of an array."""

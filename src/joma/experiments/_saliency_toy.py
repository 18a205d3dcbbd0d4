"""The toy of `saliency`: the layer of Figure 2, alone or below a read-out, trained in four ways."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from joma._core.typing import Array
from joma.data.tokens import TokenClasses, frequencies
from joma.experiments._saliency import Look
from joma.models.layer import Layer, LayerConfig
from joma.models.objectives import cross_entropy, signal, stationary
from joma.models.tower import Tower
from joma.theory import saliency

Data: TypeAlias = Literal["smooth", "random"]
KINDS: tuple[Data, ...] = ("smooth", "random")
Objective: TypeAlias = Literal["on_nodes", "joint", "layerwise", "per_node"]
"""Cross-entropy on the nodes (Figure 2); on a read-out that is trained too; on one that stays as it
is; or each node on its own, on the signal of the start (Eqn. 9, Appendix A.1)."""
OBJECTIVES: tuple[Objective, ...] = ("on_nodes", "joint", "layerwise", "per_node")
RATE = 0.1  # Figure 2, authors' script


def train(
    kind: Data, objective: Objective, seed: int, steps: tuple[int, ...]
) -> Iterator[tuple[int, Look]]:
    r"""Full-batch SGD, with a look at each of the steps.

    The signal looked at is always that of the cross-entropy, also while nodes train on their own.
    """
    data = TokenClasses(kind=kind)
    x, labels = frequencies(data, seed), torch.arange(data.classes)
    config = LayerConfig(tokens=data.tokens, hidden=data.classes)
    classes = None if objective == "on_nodes" else data.classes
    tower = Tower([config], classes, 2**31 + seed)  # the stream of the seed itself is the data's
    tower.train_only(0 if objective in ("layerwise", "per_node") else None)
    trained = [p for p in tower.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=RATE)
    g = None
    for step in range(steps[-1] + 1):
        outputs = tower.outputs(x)
        loss = cross_entropy(outputs[-1], labels)
        if g is None or step in steps:
            now = signal(loss, outputs[0])
            g = now if g is None else g
            if step in steps:
                yield step, _look(tower, x, now, np.random.default_rng([seed, step]))
        optimiser.zero_grad()
        goal = stationary(outputs[0], g) if objective == "per_node" else loss
        goal.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def _look(tower: Tower, x: Tensor, g: Tensor, rng: np.random.Generator) -> Look:
    layer = tower.levels[0]
    assert isinstance(layer, Layer)
    with torch.no_grad():
        scores = layer.scores(x)
        entropy = torch.special.entr(scores).sum(1).mean()
        v, z = layer.v.clone(), layer.logits().clone()
    frequency, node_signal = _array(x), _array(g)
    return Look(
        delta=saliency.saliency(node_signal, frequency),
        shuffled=saliency.saliency(rng.permuted(node_signal, axis=0), frequency),
        frequency=saliency.cooccurrence(frequency),
        v=_array(v),
        z=_array(z),
        entropy=_array(entropy),
    )


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().numpy())

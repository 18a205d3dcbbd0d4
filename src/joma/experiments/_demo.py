"""The runs behind `joma demo`: layers of Eqn. 1 and two language models, in seconds.

One model is given a learning rate that it can bear, the other ten times as much. What is said of
them is read off their records; nothing is assumed about how they end.
"""

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from joma._core.errors import MissingDataError
from joma.analysis.curves import curves, shape
from joma.analysis.diagnosis import diagnose, facts_of
from joma.data import python_source
from joma.data.text import vocabulary
from joma.experiments._neuron import Schedule, train
from joma.experiments.neuron import LINEAR_NODE, POINT, RELU_NODE
from joma.metrics.invariant import invariant_residual
from joma.models.language import LanguageConfig, LanguageModel
from joma.models.layer import Layer, LayerConfig
from joma.monitor.monitor import Monitor
from joma.monitor.verdict import judge
from joma.records import arrow
from joma.records.provenance import collect
from joma.records.store import Store
from joma.theory import invariants

MODULES: Final = ("argparse", "ast", "datetime", "inspect", "pathlib", "subprocess", "typing")
"""Of the standard library; their source is the text. 3.13 has made a package of one of them."""
VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 500, 64, 2, 35, 16
STEPS, WARMUP, EVERY = 300, 100, 5
RATES: Final = {"lm/learning_rate_0.003": 0.003, "lm/learning_rate_0.03": 0.03}
LAYER: Final = "layer/exp_attention"
LAYER_RATE, LAYER_STEPS = 0.05, 400
ENTROPY, LOGIT = "attention_entropy", "max_attention_logit"
NODES: Final = {"node/linear": LINEAR_NODE, "node/relu": RELU_NODE}
NODE_ENTROPY: Final = "node_entropy"
"""Its own name: the diagnosis is about attention in a language model."""
BOUNCE: Final = 0.1
"""Share of the way down that is called a bounce when it is regained."""


@dataclass(frozen=True)
class Demo:
    """What was found out, one sentence each, read off the records."""

    invariant: str
    shapes: tuple[str, ...]
    verdicts: tuple[str, ...]


def run(folder: Path, finished: Callable[[str], object] = lambda _: None) -> Demo:
    """Train all of them into a records store, and say what they did.

    Args:
        folder: The store.
        finished: Called with the name of each run that is done.
    """
    store = Store(folder, provenance=collect(config={"demo": 1}, seed=0))
    said = _layer(store)
    _nodes(store)
    finished(LAYER)
    text = words()
    for name, rate in RATES.items():
        _language(store, name, rate, text)
        finished(name)
    table = store.read(metric=(ENTROPY, "attention_entropy_sink_free", LOGIT, "loss"))
    found = diagnose(table, facts_of(store))
    verdicts = tuple(f"{d.run}: {d.verdict.value}. {d.message}" for d in found)
    return Demo(said, tuple(_shapes(store)), verdicts)


def words() -> Int[Tensor, " context"]:
    """The standard library's own source as ids of its most frequent tokens."""
    places = [Path(sysconfig.get_path("stdlib")) / f"{name}.py" for name in MODULES]
    found = python_source.parse_files([place for place in places if place.is_file()])
    tokens = [word for file in found.files for word in file.words]
    if len(tokens) < 10 * LENGTH * BATCH:
        raise MissingDataError(
            f"The demo reads the source of the standard library in {places[0].parent}, and found "
            f"{len(tokens)} tokens there. Is this Python installed without its source?"
        )
    return vocabulary(tokens, VOCABULARY).encode(tokens)


def _layer(store: Store) -> str:
    """The layer of Eqn. 1 under plain SGD, and what Theorem 1 reads off its weights alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((64, 6), generator=generator, dtype=torch.float64)
    labels = x.argmax(1) % 3
    layer = Layer(LayerConfig(tokens=6, hidden=3, attention="exp", temperature=1.0, init_z=0.0))
    optimiser = torch.optim.SGD(layer.parameters(), lr=LAYER_RATE)
    z, v, losses = [layer.z.detach().clone()], [layer.v.detach().clone()], list[float]()
    for _ in range(LAYER_STEPS):
        loss = F.cross_entropy(layer(x), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
        z.append(layer.z.detach().clone())
        v.append(layer.v.detach().clone())
    logits, weights = torch.stack(z).numpy(), torch.stack(v).numpy()
    expected = invariants.predicted_logits(weights, logits[0], attention="exp")
    steps = np.arange(LAYER_STEPS + 1.0)[::10]
    for kind, values in (("measured", logits), ("predicted", expected)):
        largest = values.max(-1)[::10]
        store.append(
            arrow.from_columns(run=LAYER, metric=LOGIT, kind=kind, step=steps, value=largest)
        )
    store.append(arrow.from_columns(run=LAYER, metric="loss", step=steps[:-1], value=losses[::10]))
    found = invariant_residual(z[-1], v[-1], z[0], v[0])
    return (
        f"Theorem 1 in {LAYER}: after {LAYER_STEPS} steps of SGD the attention logits are those "
        f"that the MLP weights alone predict, to {found.relative_error:.2%} of how far they moved "
        f"(correlation {found.correlation:.5f}, slope {found.slope:.4f})."
    )


def _nodes(store: Store) -> None:
    """One linear and one ReLU node on the data of Section 4, from the same start."""
    trained = train([POINT], list(NODES.values()), Schedule(), 0)
    for name, entropy in zip(NODES, trained.entropy[0].numpy(), strict=True):
        store.append(
            arrow.from_columns(
                run=name,
                metric=NODE_ENTROPY,
                kind="control" if name == "node/linear" else "measured",
                step=trained.steps.double().numpy(),
                value=entropy,
            )
        )


def _language(store: Store, name: str, rate: float, text: Int[Tensor, " context"]) -> None:
    config = LanguageConfig(
        vocab=VOCABULARY,
        layers=LAYERS,
        embed=WIDTH,
        hidden=WIDTH,
        num_heads=2,
        dropout=0.0,
        same_start=False,
    )
    model = LanguageModel(config, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    draws = torch.Generator().manual_seed(0)
    rule = judge()
    noted = {"joma_facts": {"warmup": WARMUP, "vocabulary": VOCABULARY}, "learning_rate": rate}
    with Monitor(model, every=EVERY, out=store.path, run=name, judge=rule, config=noted) as monitor:
        for step in range(STEPS):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / WARMUP)
            at = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=draws)
            rows = text[at + torch.arange(LENGTH + 1)]
            scores = model(rows[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
            if step == 0:
                rule.hear(loss.item())
                first = arrow.from_columns(
                    run=name, metric="loss", context="train", step=[0.0], value=[loss.item()]
                )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            monitor.step(loss=loss.detach(), lr=optimiser.param_groups[0]["lr"])
    store.append(first)


def _shapes(store: Store) -> Iterator[str]:
    """Dip and bounce of each node and layer, or that there was none."""
    for curve in curves(store.read(run=[*NODES, *RATES], metric=(NODE_ENTROPY, ENTROPY))):
        seen = shape(curve.steps, curve.values)
        where = "" if curve.layer is None else f", layer {curve.layer}"
        down = (
            f"{curve.run}{where}: entropy {seen.start:.2f} at the start, lowest "
            f"{seen.dip:.2f} at step {seen.dip_step:g}, {seen.end:.2f} at the end"
        )
        if seen.bounce >= BOUNCE:
            yield f"{down}: a dip, of which {seen.bounce:.0%} came back."
        else:
            yield f"{down}: less than {BOUNCE:.0%} of the way came back."

"""Trains two small models, in children that a test may kill: `python training_worker.py`.

The process loads the code once and forks a child for each line of JSON on its standard input. It
prints the child's id, a line per step that the child begins, and last how the child ended.
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

from joma.architectures.base import Architecture, Matrix, Mlp
from joma.experiments import _checkpoint, _training
from joma.metrics import entropy, rank
from joma.models.language import LanguageConfig, LanguageModel
from joma.models.layer import Layer, LayerConfig
from joma.models.objectives import cross_entropy
from joma.records import disk
from joma.records.store import Store

STEPS = 60
SAVE_EVERY = 7  # does not divide the steps: the last stretch is shorter


class Toy(torch.nn.Module):
    """The layer of Eqn. 1 in a list, where a family file can name its matrices."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(LayerConfig(learned=True), seed=3)])

    def forward(self, x):
        return self.layers[0](x)


TOY = Architecture(
    model_types=(),
    embedding=None,
    mlps=(
        Mlp(
            lower=(Matrix(name="layers.{layer}.W", transposed=True),),
            upper=Matrix(name="layers.{layer}.U_C"),
        ),
    ),
    attentions=(),
)


def toy():
    """Float64 and SGD with momentum; batches are drawn from torch's global generator."""
    model = Toy()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def batch(step):
        x = torch.rand(16, 20, dtype=torch.float64)
        return x, x.argmax(1)

    fixed = torch.eye(20, dtype=torch.float64) + 0.1
    measure = _training.Measurement(
        at=range(0, 61, 3), batch=(fixed, fixed.argmax(1)), probes=(rank.PROBE,), architecture=TOY
    )
    return model, optimiser, batch, measure, None


def lm():
    """Float32, dropout, Adam and clipping; batches have a generator of their own."""
    config = LanguageConfig(vocab=50, layers=2, embed=16, hidden=16, num_heads=2, dropout=0.2)
    model = LanguageModel(config, seed=3)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)

    def batch(step):
        words = torch.randint(50, (4, 13), generator=torch.Generator().manual_seed(1000 + step))
        return words[:, :-1], words[:, 1:]

    measure = _training.Measurement(
        at={0, 1, 2, 5, 10, 14, 20, 30, 40, 50, 59, 60},
        batch=batch(-1),
        probes=(entropy.PROBE, rank.PROBE),
        tokens=48,
        sequence_length=12,
    )
    return model, optimiser, batch, measure, 0.5


def loss(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


CASES = {"toy": toy, "lm": lm}


def train(case, folder, before=None, **changes):
    """Train a case in a folder. Gives the digest of weights and optimiser state."""
    model, optimiser, batch, measure, clip = CASES[case]()
    settings = {
        "steps": STEPS,
        "seed": 11,
        "run": f"{case}/seed 11",
        "store": Store(folder / "store"),
        "folder": folder / "checkpoints",
        "measure": measure,
        "save_every": SAVE_EVERY,
        "clip": clip,
        "before": before,
    }
    _training.train(model, loss, batch, optimiser, **(settings | changes))
    moments = {
        f"{number} {name}": tensor
        for number, state in optimiser.state_dict()["state"].items()
        for name, tensor in state.items()
    }
    return _checkpoint.digest(model.state_dict() | moments)


def die(owner, name, count, after):
    """Make call number `count` of a function the last thing this process does, or not even that."""
    function, calls = getattr(owner, name), []

    def last(*args, **kwargs):
        calls.append(name)
        if len(calls) == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, last)


PLACES = {
    "records": (Store, "append"),
    "checkpoint": (_checkpoint, "save"),
    "rename": (disk.os, "rename"),
}


def child(case, folder, death, hold):
    """Train. After `hold` steps, wait for the kill: on a busy machine it may come late."""
    warnings.simplefilter("error")
    if death is not None:
        place, count, after = death
        die(*PLACES[place], count, after)
    folder = Path(folder)
    begun = []

    def before(step):
        os.write(1, f"step {step}\n".encode())
        begun.append(step)
        if len(begun) == hold:
            time.sleep(60)

    digest = train(case, folder, before)
    (folder / "digest").write_text(digest)


def main():
    torch.set_num_threads(1)
    for case in CASES.values():
        case()  # optimisers load much of torch when the first one is made
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                child(*json.loads(line))
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        os.write(1, f"child {pid}\n".encode())
        os.write(1, f"ended {os.waitpid(pid, 0)[1]}\n".encode())


if __name__ == "__main__":
    main()

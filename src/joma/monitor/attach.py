"""`joma.watch`: one line that puts a monitor into someone else's trainer."""

import importlib
from typing import Any, Final

from joma._core.errors import JomaError
from joma.monitor.hosted import Hosted

_HOSTS: Final = {
    "transformers": "joma.monitor.trainer",
    "lightning": "joma.monitor.lightning",
    "pytorch_lightning": "joma.monitor.lightning",
}
"""By the package that a class named `Trainer` comes from: the edge file that knows it."""


def watch(trainer: Any, **options: Any) -> Hosted:
    """Watch every training of a Trainer of transformers or Lightning; nothing else to call.

    Readings appear where the trainer logs, every head of them in the records, and when training
    ends a verdict `joma_verdict`. The training is, bit for bit, what it would have been. Records
    go into `joma-records` in the trainer's output folder. A training that is resumed from a
    checkpoint goes on in the records of the run that saved it.

    Args:
        trainer: Before `train` or `fit` is called.
        **options: Those of `joma.Monitor` but `model` and `step`. `config={"joma_facts": {…}}`
            corrects what is found out about the run, as `{"fine_tuned": False, "warmup": 100}`;
            `judge=` replaces the diagnosis.

    Returns:
        A handle with `metrics()`, `alerts`, `verdict`, `cost()`, `run` and the `monitor` itself,
        which is made when training begins.
    """
    for kind in type(trainer).__mro__:
        package = kind.__module__.partition(".")[0]
        if kind.__name__ == "Trainer" and package in _HOSTS:
            hosted: Hosted = importlib.import_module(_HOSTS[package]).attach(trainer, options)
            return hosted
    raise JomaError(
        "joma.watch knows the Trainer of transformers and of Lightning; got "
        f"{type(trainer).__module__}.{type(trainer).__qualname__}. In a loop of your own, make a "
        "joma.Monitor(model) and call its step(loss=...) after each optimiser step."
    )

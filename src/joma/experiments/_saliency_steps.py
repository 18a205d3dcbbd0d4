"""A language model looked at on the way, at steps of its training, and never twice.

Looks that need gradients or token ids are no probes. They are kept beside the checkpoints, so
that a run that was killed goes on where it was.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from joma._core.typing import Array
from joma.experiments._language import Setting, trained
from joma.models.language import LanguageModel
from joma.records import disk

Arrays = Mapping[str, Float[Array, "..."]]


def at_steps(
    setting: Setting,
    arm: str,
    seed: int,
    folder: Path,
    steps: tuple[int, ...],
    look: Callable[[LanguageModel, int], Arrays],
) -> Iterator[tuple[int, Arrays]]:
    """What `look` gives for the model after each of the steps, in order; the model is evaluating.

    Args:
        setting: How to train; the last of `steps` counts, not its own number.
        arm: Name of the run, as for `trained`.
        seed: Of the model and its dropout.
        folder: For checkpoints and looks of this seed and no other.
        steps: Rising.
        look: Gives named arrays of a model and its step.
    """
    for step in steps:
        path = folder / arm / "looks" / f"{step:06d}.npz"
        if not path.exists():
            model, _ = trained(replace(setting, steps=step), arm, seed, folder)
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **look(model.eval(), step))
            disk.publish(path, file.getvalue())
        with np.load(path) as kept:
            yield step, {name: kept[name] for name in kept.files}

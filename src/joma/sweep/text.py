"""Edge file for joma[hf]: probes that watch a model read a text, checkpoint by checkpoint.

Weights of a whole model are needed here, so transformers loads it, from the same source.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from joma._core.errors import JomaError
from joma._core.extras import extra
from joma.probes.base import AbstractStreamProbe
from joma.probes.observe import observe
from joma.records.schema import Reading
from joma.sources.base import AbstractSource
from joma.sweep.job import Text

with extra("hf", packages=("transformers",), purpose="Watching a model read a text"):
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as shown


def readings(
    source: AbstractSource, revision: str, text: Text, probes: Mapping[str, AbstractStreamProbe]
) -> dict[str, list[Reading]]:
    """What each probe reads of one revision, in float32, sequence by sequence."""
    model, tokens = loaded(source, revision), sequences(tokeniser(source, revision), text)
    found: dict[str, list[Reading]] = {}
    for name, probe in probes.items():
        with torch.no_grad(), observe(model, [probe], example={"input_ids": tokens[:1]}) as seen:
            for row in tokens:
                model(input_ids=row[None])
        found[name] = list(seen.readings())
    return found


def loaded(source: AbstractSource, revision: str) -> Any:
    """The model of a revision in float32, without its head.

    Raises:
        JomaError: Weights are missing; transformers would fill them at random and go on.
    """
    where: dict[str, Any] = source.pretrained(revision)
    with quiet():
        model, about = AutoModel.from_pretrained(
            **where, dtype=torch.float32, output_loading_info=True
        )
    # A pooler follows the last layer, and checkpoints of language models rightly have none.
    missing = sorted(name for name in about["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise JomaError(
            f"Revision {revision!r} lacks {len(missing)} weights of its model, among them "
            f"{missing[0]}: what it does with others in their place would mean nothing."
        )
    return model.eval()


def tokeniser(source: AbstractSource, revision: str) -> Any:
    """That of a revision."""
    with quiet():
        return AutoTokenizer.from_pretrained(**source.pretrained(revision))


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and reports that transformers shows for every revision."""
    bars, before = shown.is_progress_bar_enabled(), logging.root.manager.disable
    shown.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
        if bars:
            shown.enable_progress_bar()  # type: ignore[no-untyped-call]


def sequences(tokenizer: object, text: Text) -> Int[Tensor, "sequences length"]:
    """The text as rows of `length` tokens; what is left at its end is not used."""
    assert callable(tokenizer)
    # A token has at least one character, as a rule four: no need to encode a whole book.
    start = text.content[: 40 * text.length * text.sequences]
    ids = tokenizer(start, add_special_tokens=False, verbose=False)["input_ids"]
    count = min(text.sequences, len(ids) // text.length)
    if count == 0:
        raise JomaError(
            f"The text has {len(ids)} tokens; one sequence needs {text.length}. "
            "Give a longer text, or a shorter length."
        )
    return torch.tensor(ids[: count * text.length]).view(count, text.length)

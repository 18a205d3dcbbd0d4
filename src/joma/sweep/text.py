"""Edge file for joma[hf]: probes that watch a model read a text, checkpoint by checkpoint.

Weights of a whole model are needed here, so transformers loads it, from the same source.
"""

from collections.abc import Mapping

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


def readings(
    source: AbstractSource, revision: str, text: Text, probes: Mapping[str, AbstractStreamProbe]
) -> dict[str, list[Reading]]:
    """What each probe reads of one revision, in float32, sequence by sequence."""
    where = source.pretrained(revision)
    model = AutoModel.from_pretrained(**where, dtype=torch.float32).eval()
    tokens = sequences(AutoTokenizer.from_pretrained(**where), text)
    found: dict[str, list[Reading]] = {}
    for name, probe in probes.items():
        with torch.no_grad(), observe(model, [probe], example={"input_ids": tokens[:1]}) as seen:
            for row in tokens:
                model(input_ids=row[None])
        found[name] = list(seen.readings())
    return found


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

"""WikiText as the paper's language models read it: from a folder of this machine, or the hub."""

import os
from pathlib import Path

from joma._core.errors import MissingDataError
from joma.data import text
from joma.data.text import Corpus

FOLDER, SHARED, HUB = "JOMA_DATA", "JOMA_SHARED", "hub"


def load(name: str = "wikitext-2", *, size: int | None = None) -> Corpus:
    """The corpus, with its vocabulary cut to `size` entries if given.

    Looked for in the folder `JOMA_DATA`, then in `data` below `JOMA_SHARED` (or "../shared").
    Nothing is downloaded unless `JOMA_DATA` is `hub`: then the word-level version, by `datasets`.
    """
    if os.environ.get(FOLDER) == HUB:
        from joma.data import hub  # noqa: PLC0415  # an edge file: needs joma[hf]

        return hub.load(name, size=size)
    return text.read(folder(name), size=size)


def folder(name: str = "wikitext-2") -> Path:
    """Where the corpus is on this machine."""
    places = [Path(os.environ.get(SHARED, "../shared")) / "data" / name]
    if FOLDER in os.environ:
        places.insert(0, Path(os.environ[FOLDER]) / name)
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        looked = " or ".join(str(place) for place in places)
        raise MissingDataError(
            f"Needs {name}: train.txt, valid.txt and test.txt; there is no {looked}. Set {FOLDER} "
            f"to the folder that holds {name}, or to {HUB!r} to download it."
        )
    return found

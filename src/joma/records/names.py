"""File names: which directory a run lives in, and what a part's name says about it.

A part is named once and never renamed, so its name can carry facts that a reader needs
before it opens the file:

    0019a84c1d2e3f 4b1c9d0e7a5f - s - 9f3b2c1d .parquet
    time (µs)      random         kind checksum

Names are unique over machines and sort by time of commit.
"""

import hashlib
import os
import re
import time
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

from joma._core.errors import StoreError

_LONGEST = 150  # file systems allow 255 bytes; leave room for tools that add suffixes
_PART = re.compile(r"([0-9a-f]{26})-([a-z])-([0-9a-f]{8})\.parquet")


class PartKind(StrEnum):
    """How a part is to be read."""

    SMALL = "s"
    """Carries a packed copy of its rows; the checksum covers the whole file."""
    LARGE = "l"
    """Row groups cut at metric borders; the checksum covers the footer, pages have their own."""
    COMPACTED = "c"
    """A large part that stands for the parts its header lists."""


_KINDS = {str(kind): kind for kind in PartKind}


class PartName(NamedTuple):
    """The name of a part, taken apart."""

    id: str
    kind: PartKind
    checksum: int

    @property
    def file(self) -> str:
        return f"{self.id}-{self.kind}-{self.checksum:08x}.parquet"


def id_of(file: str) -> str:
    """The identity in a part's file name, without reading the rest."""
    return file[:26]


def is_compacted(file: str) -> bool:
    """Whether a file name says so."""
    return file[26:29] == f"-{PartKind.COMPACTED}-"


def parse(file: str) -> PartName | None:
    """A file name taken apart; `None` if joma did not give it."""
    match = _PART.fullmatch(file)
    if match is None:
        return None
    part_id, kind, checksum = match.groups()
    if kind not in _KINDS:
        raise StoreError(
            f"Part {file} is of kind {kind!r}, which this joma does not know. "
            "A newer one wrote it: upgrade joma to read this store."
        )
    return PartName(part_id, _KINDS[kind], int(checksum, 16))


def new_id() -> str:
    """An identity no other part has, on any machine, ordered by time."""
    return f"{time.time_ns() // 1000:014x}{os.urandom(6).hex()}"


def directory(run: str) -> str:
    """The directory of a run: its name in percent code, cut and hashed if long.

    Example:
        >>> directory("EleutherAI/pythia-160m"), directory("..")
        ('EleutherAI%2Fpythia-160m', '%2E.')
    """
    quoted = quote(run, safe="", errors="surrogatepass").replace("~", "%7E")
    if quoted.startswith("."):  # neither hidden nor a way up
        quoted = "%2E" + quoted[1:]
    if quoted and len(quoted) <= _LONGEST:
        return quoted
    digest = hashlib.sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{quoted[: _LONGEST - 40]}~{digest}"


def run_of(directory: str) -> str | None:
    """The run a directory belongs to; `None` if the name was too long to be kept."""
    return None if "~" in directory else unquote(directory, errors="surrogatepass")

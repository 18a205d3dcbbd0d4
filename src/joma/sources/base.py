"""What a source of checkpoints can do. Start here to add one.

A source is a file that defines `SOURCE`, a subclass of `AbstractSource`. Sources are small values:
they pickle, so that workers get them whole, and neither connections nor tokens travel with them.
"""

import abc
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from joma.sources._errors import (
    ChangedFileError as ChangedFileError,
    HostileFileError as HostileFileError,
    SourceError as SourceError,
)
from joma.sources._index import (
    FileInfo as FileInfo,
    Index as Index,
    Range as Range,
    TensorInfo as TensorInfo,
    coalesced as coalesced,
)
from joma.sources._names import Revision as Revision, parse as parse, select as select
from joma.sources._traffic import Traffic as Traffic


class AbstractSource(abc.ABC):
    """Checkpoints of one or several training runs, and their tensors by name."""

    @classmethod
    @abc.abstractmethod
    def opened(cls, where: str) -> "AbstractSource":
        """The source that the text after `KIND:` names."""

    @classmethod
    def expanded(cls, pattern: str) -> tuple[str, ...]:
        """Every place that a pattern names, for a suite: here the pattern itself."""
        return (pattern,)

    @property
    @abc.abstractmethod
    def spec(self) -> str:
        """The text that `sources.open` makes this source from."""

    @property
    @abc.abstractmethod
    def traffic(self) -> Traffic:
        """Bytes, requests and retries of this object so far, in this process."""

    @abc.abstractmethod
    def revisions(self) -> tuple[Revision, ...]:
        """Every revision that was asked for, in order; those without a step come last.

        A name that cannot be parsed is not dropped: its `problem` says what is wrong.
        """

    @abc.abstractmethod
    def index(self, revision: str) -> Index:
        """The tensors of a revision: dtypes, shapes, and where their bytes are. Reads headers."""

    @abc.abstractmethod
    def read(
        self, revision: str, names: Iterable[str], *, device: str | None = None
    ) -> Mapping[str, Tensor]:
        """The tensors of these names, in the dtype they are stored in. Reads their bytes only."""

    @abc.abstractmethod
    def config(self, revision: str) -> dict[str, Any]:
        """The `config.json` of a revision; empty if it has none."""

    @abc.abstractmethod
    def pretrained(self, revision: str) -> dict[str, str]:
        """Keyword arguments with which transformers' `from_pretrained` loads the revision."""

"""Checkpoints in memory: for tests, and for models that were never saved."""

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, final

from torch import Tensor

from joma.sources._dtypes import NAMES
from joma.sources._errors import SourceError
from joma.sources._index import Index, TensorInfo
from joma.sources._names import Revision, parse, select
from joma.sources._traffic import Traffic
from joma.sources.base import AbstractSource


@final
class MemorySource(AbstractSource):
    """State dictionaries by revision name."""

    def __init__(
        self,
        checkpoints: Mapping[str, Mapping[str, Tensor]],
        config: Mapping[str, Any] | None = None,
        run: str = "memory",
    ):
        """`config` is what `config.json` would hold, the same for every revision."""
        self.checkpoints = {name: dict(tensors) for name, tensors in checkpoints.items()}
        self.run = run
        self._config = dict(config or {})
        self._traffic = Traffic()

    @classmethod
    def opened(cls, where: str) -> NoReturn:
        raise SourceError(
            f"'memory:{where}' cannot be opened by name: tensors in memory have none. Build a "
            "joma.sources.memory.MemorySource, or name a directory."
        )

    @property
    def spec(self) -> str:
        return f"memory:{self.run}"

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def revisions(self) -> tuple[Revision, ...]:
        return select((parse(name, self.run) for name in self.checkpoints), None)

    def index(self, revision: str) -> Index:
        tensors = {
            name: TensorInfo(
                name, NAMES[t.dtype], tuple(t.shape), "", 0, 0, t.numel() * t.element_size()
            )
            for name, t in self._tensors(revision).items()
        }
        return Index(revision, tensors, {})

    def read(
        self, revision: str, names: Iterable[str], *, device: str | None = None
    ) -> Mapping[str, Tensor]:
        there = self._tensors(revision)
        picked = {info.name: there[info.name].detach() for info in self.index(revision).pick(names)}
        return picked if device is None else {n: t.to(device) for n, t in picked.items()}

    def config(self, revision: str) -> dict[str, Any]:
        self._tensors(revision)
        return dict(self._config)

    def pretrained(self, revision: str) -> NoReturn:
        raise SourceError(
            f"Revision {revision!r} is in memory only; transformers loads from a directory or the "
            "hub. Save it with save_pretrained and open that directory."
        )

    def _tensors(self, revision: str) -> dict[str, Tensor]:
        if revision not in self.checkpoints:
            raise SourceError(
                f"No revision {revision!r} in memory. There are: {', '.join(self.checkpoints)}."
            )
        return self.checkpoints[revision]


SOURCE = MemorySource

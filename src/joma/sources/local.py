"""Checkpoints in a local directory: one per sub-directory, or a single model.

`checkpoint-1000/model.safetensors`, `step512/pytorch_model.bin`: each sub-directory with weights is
a revision, and weights in the directory itself are the revision `main`.
"""

import glob
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from torch import Tensor

from joma.sources import _checkpoint
from joma.sources._bytes import AbstractFiles
from joma.sources._errors import ChangedFileError, SourceError
from joma.sources._index import FileInfo, Index
from joma.sources._names import Revision, danger, parse, select
from joma.sources._recent import Recent
from joma.sources._traffic import Traffic
from joma.sources.base import AbstractSource

MAIN = "main"


@final
class LocalSource(AbstractSource):
    """Checkpoints of one run in a directory. Reads with `pread`, without read-ahead."""

    def __init__(self, path: str | Path, which: str | None = None, run: str | None = None):
        """`which` chooses revisions; `run` names the training run, else the directory does."""
        self.path = Path(path)
        self.which = which
        self.run = self.path.resolve().name if run is None else run
        self._traffic = Traffic()
        self._recent: Recent[Index] = Recent()
        if not self.path.is_dir():
            raise SourceError(
                f"{str(self.path)!r} is not a directory. A source is a directory of checkpoints, "
                "or KIND:WHERE as in hub:EleutherAI/pythia-160m."
            )

    @classmethod
    def opened(cls, where: str) -> "LocalSource":
        path, at, which = where.rpartition("@")
        if at and not Path(where).is_dir():
            return cls(path, which)
        return cls(where)

    @classmethod
    def expanded(cls, pattern: str) -> tuple[str, ...]:
        return tuple(sorted(p for p in glob.glob(pattern) if os.path.isdir(p)))

    @property
    def spec(self) -> str:
        return f"local:{self.path}" + (f"@{self.which}" if self.which else "")

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def revisions(self) -> tuple[Revision, ...]:
        found = [
            parse(entry.name, self.run)
            for entry in os.scandir(self.path)
            if entry.is_dir() and _checkpoint.has_weights(os.listdir(entry.path))
        ]
        if _checkpoint.has_weights(os.listdir(self.path)):
            found.append(parse(MAIN, self.run))
        if not found:
            raise SourceError(
                f"{self.path} holds no weights, nor do its sub-directories. Expected files "
                "such as model.safetensors or pytorch_model.bin."
            )
        return select(found, self.which)

    def index(self, revision: str) -> Index:
        return self._recent.get(
            revision, lambda: _checkpoint.index(self._files(revision), revision)
        )

    def read(
        self, revision: str, names: Iterable[str], *, device: str | None = None
    ) -> Mapping[str, Tensor]:
        return _checkpoint.read(self._files(revision), self.index(revision), names, device)

    def config(self, revision: str) -> dict[str, Any]:
        return _checkpoint.config(self._files(revision))

    def pretrained(self, revision: str) -> dict[str, str]:
        return {"pretrained_model_name_or_path": str(self._folder(revision))}

    def _files(self, revision: str) -> "LocalFiles":
        return LocalFiles(self._folder(revision), self._traffic)

    def _folder(self, revision: str) -> Path:
        problem = danger(revision) or ("/" in revision and f"{revision!r} is not one name.")
        if problem:
            raise SourceError(str(problem))
        folder = self.path / revision
        if folder.is_dir():
            return folder
        if revision == MAIN:
            return self.path
        raise SourceError(f"{self.path} has no revision {revision!r}.")


@final
class LocalFiles(AbstractFiles):
    """Regular files of one directory."""

    def __init__(self, folder: Path, traffic: Traffic):
        """Reads are counted in `traffic`."""
        self.folder = folder
        self.traffic = traffic

    def listing(self) -> Mapping[str, FileInfo]:
        found = {}
        for name in os.listdir(self.folder):
            status = os.stat(self.folder / name)
            if stat.S_ISREG(status.st_mode):
                found[name] = FileInfo(name, status.st_size, _tag(status))
        return found

    def fetch(self, file: FileInfo, start: int, into: memoryview) -> None:
        descriptor = os.open(self.folder / file.name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if _tag(os.fstat(descriptor)) != file.etag:
                raise ChangedFileError(
                    f"{self.folder / file.name} changed while it was being read. "
                    "Let whoever writes it finish, then read it again."
                )
            if hasattr(os, "posix_fadvise"):  # Linux; read-ahead tripled the bytes from disk
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            done = 0
            while done < len(into):
                got = os.preadv(descriptor, [into[done:]], start + done)
                if got == 0:
                    raise ChangedFileError(
                        f"{self.folder / file.name} ended at byte {start + done}, before byte "
                        f"{start + len(into)} that was asked for. It was cut while being read."
                    )
                done += got
                self.traffic.add(size=got, requests=1)
        finally:
            os.close(descriptor)


def _tag(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


SOURCE = LocalSource

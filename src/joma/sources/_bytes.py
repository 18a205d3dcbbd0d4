"""The files of one revision, as byte ranges."""

import abc
from collections.abc import Mapping

from joma.sources._errors import HostileFileError
from joma.sources._index import FileInfo


class AbstractFiles(abc.ABC):
    """Files of one revision: their names, and any bytes of them."""

    threads: int = 1
    """How many ranges may be fetched at once."""
    piece: int = 1 << 30
    """Largest range that is fetched in one go."""

    @abc.abstractmethod
    def listing(self) -> Mapping[str, FileInfo]:
        """Every file of the revision, by its name."""

    @abc.abstractmethod
    def fetch(self, file: FileInfo, start: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `start` on, of the file as it was when listed.

        Raises:
            ChangedFileError: The file is not the same any more.
        """


def fetched(files: AbstractFiles, file: FileInfo, start: int, stop: int) -> bytes:
    """Bytes `start` to `stop` of a file. For headers: a few megabytes at most."""
    if not 0 <= start <= stop <= file.size:
        raise HostileFileError(
            f"{file.name} refers to its bytes {start} to {stop}, but has {file.size}. "
            "It is damaged or cut short; fetch or save it again."
        )
    buffer = bytearray(stop - start)
    if buffer:
        files.fetch(file, start, memoryview(buffer))
    return bytes(buffer)


def first_guess(size: int) -> int:
    """How much of a file to read for its header before knowing its length.

    Small beside the file, so that the guess cannot spoil the share of bytes read for nothing.
    """
    return min(size, max(1024, min(size // 4096, 64 * 1024)))

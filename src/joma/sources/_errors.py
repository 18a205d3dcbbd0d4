"""What goes wrong at a source."""

from joma._core.errors import JomaError


class SourceError(JomaError):
    """A source cannot give what was asked, and says why."""


class HostileFileError(SourceError):
    """A file is damaged, or made to do harm. Nothing of it was used."""


class ChangedFileError(SourceError):
    """A file changed between two reads, so its parts do not belong together."""

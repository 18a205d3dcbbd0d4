"""Exceptions a caller may want to catch."""


class JomaError(Exception):
    """Base class of every error raised on purpose by joma."""


class UnknownNameError(JomaError, LookupError):
    """A plug-in was asked for by a name that does not exist."""


class MissingExtraError(JomaError, ImportError):
    """A feature needs an optional dependency that is not installed."""


class MissingDataError(JomaError):
    """An experiment needs data that is not on this machine, and says where it looked."""


class StoreError(JomaError):
    """A records store cannot do what was asked, and says why."""


class DamagedPartWarning(UserWarning):
    """A part of a records store could not be read and was left out. Names the file."""

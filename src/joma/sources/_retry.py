"""Trying again: exponential waits with jitter, or as long as the server says."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from joma.sources._errors import SourceError
from joma.sources._traffic import Traffic

T = TypeVar("T")

_PATIENCE = 600.0  # seconds that a server may ask us to wait; the hub's window is 300


@dataclass(frozen=True)
class Retry:
    """How often to try, and how long to wait: `first` seconds, doubled up to `longest`."""

    attempts: int = 9
    first: float = 0.5
    longest: float = 30.0
    knocks: int | None = None
    """How often to try if there is no connection at all; as often as otherwise, if absent."""

    def wait(self, failures: int) -> float:
        """Seconds after this many failures, half of them at random: workers should not march."""
        step = min(self.longest, self.first * 2.0 ** (failures - 1))
        return step * random.Random().uniform(0.5, 1.0)


class TransientError(Exception):
    """One attempt failed in a way that may pass."""

    advice = "Try again later; what was committed stays."

    def __init__(self, reason: str, after: float = 0.0, final: type[SourceError] = SourceError):
        """`after`: seconds the server asked for; `final`: what to raise if it does not pass."""
        super().__init__(reason)
        self.after = after
        self.final = final


class NobodyError(TransientError):
    """There was no connection."""

    advice = "Is there a network? The hub's address is in HF_ENDPOINT, if that is set."


def retried(attempt: Callable[[], T], what: str, retry: Retry, traffic: Traffic) -> T:
    """The result of `attempt`, tried again while it raises `TransientError`."""
    failures = 0
    while True:
        try:
            return attempt()
        except TransientError as error:
            failures += 1
            most = retry.attempts
            if retry.knocks is not None and isinstance(error, NobodyError):
                most = min(most, retry.knocks)
            if failures >= most:
                raise error.final(
                    f"{what}: {error}, {failures} times in a row. {error.advice}"
                ) from error
            traffic.add(retries=1)
            time.sleep(max(retry.wait(failures), error.after))


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds a server asks us to wait, 0 if it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return min(_PATIENCE, float(text[:9]))
    try:
        return min(_PATIENCE, max(0.0, parsedate_to_datetime(text).timestamp() - time.time()))
    except (ValueError, TypeError, OverflowError):
        return 0.0

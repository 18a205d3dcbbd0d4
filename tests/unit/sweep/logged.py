"""A source that writes down what is read of it, and can be slow or deadly. For real processes."""

import os
import signal
import time
from pathlib import Path

from joma.sources.base import AbstractSource
from joma.sources.local import LocalSource


class LoggedSource(AbstractSource):
    """Checkpoints of a directory, each read noted in a file by one atomic append."""

    def __init__(self, folder, log, pause=0.0, deadly=None, forever=False):
        """`deadly`: reading this revision kills the process, once, or while the file exists."""
        self.inner = LocalSource(folder)
        self.log = Path(log)
        self.pause = pause
        self.deadly = deadly
        self.forever = forever

    @classmethod
    def opened(cls, where):
        raise NotImplementedError

    @property
    def spec(self):
        return self.inner.spec

    @property
    def traffic(self):
        return self.inner.traffic

    def revisions(self):
        return self.inner.revisions()

    def index(self, revision):
        return self.inner.index(revision)

    def read(self, revision, names, *, device=None):
        with open(self.log, "ab", buffering=0) as file:
            file.write(f"{revision} {os.getpid()}\n".encode())
        time.sleep(self.pause)
        if self.deadly is not None and revision == self.deadly[0]:
            trap = Path(self.deadly[1])
            if trap.exists():
                if not self.forever:
                    trap.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.inner.read(revision, names, device=device)

    def config(self, revision):
        return self.inner.config(revision)

    def pretrained(self, revision):
        return self.inner.pretrained(revision)


def reads(log) -> list[str]:
    """Names of the revisions that were read, in order."""
    path = Path(log)
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def pids(log) -> list[int]:
    return [int(line.split()[1]) for line in Path(log).read_text().splitlines()]

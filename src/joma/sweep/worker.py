"""The process that `engines.process` starts: takes tasks from a line until it is closed."""

import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from joma.sweep.engines.base import deadline
from joma.sweep.work import attempt


def send(line: Connection, what: Any) -> None:
    """Send by value: the line's own `send` would share the memory of tensors, and not get far."""
    line.send_bytes(pickle.dumps(what))


def received(line: Connection) -> Any:
    """What the other end, which is us, has sent."""
    return pickle.loads(line.recv_bytes())  # noqa: S301


def main(descriptor: int) -> None:
    """Serve one line. Ends quietly when the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver; it ends us
    line = Connection(descriptor)
    try:
        job, timeout = received(line)
        while True:
            task = received(line)
            with deadline(timeout):
                answer = attempt(job, task)
            send(line, answer)
    except (EOFError, OSError):
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Runs sweeps in forked children, so that each can be killed without loading torch again.

Reads JSON lines `[folder, log, out, pause]`; prints the child's id, then its exit status.
"""

import json
import os
import sys

from joma.sweep.run import Sweep
from unit.sweep.logged import LoggedSource


def main() -> None:
    for line in sys.stdin:
        folder, log, out, pause = json.loads(line)
        child = os.fork()
        if child == 0:
            source = LoggedSource(folder, log, pause)
            Sweep(source, ["rank"], out=out, commit_seconds=0.05).run()
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()

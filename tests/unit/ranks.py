"""Two processes of one program, as `torchrun` would start them."""

import json
import os
import subprocess
import sys


def answers(worker, *words, **environment):
    """The last line of what each of two ranks prints, as JSON."""
    workers = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]

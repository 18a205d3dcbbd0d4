"""Watched runs that a test kills: `python fault_worker.py`.

The process loads the code once and forks a child for each line of JSON on its standard input:
`[folder, first step, last step, handler]`. It prints the child's id, a line per step of the
child, and last how the child ended.
"""

import json
import os
import signal
import sys
import time

import torch

from joma.models.language import LanguageConfig, LanguageModel
from joma.monitor.monitor import Monitor


def handled(number, frame):
    print("handled", flush=True)
    sys.exit(7)


def child(folder, first, last, handler):
    if handler == "python":
        signal.signal(signal.SIGTERM, handled)
    config = LanguageConfig(vocab=20, layers=1, embed=8, hidden=8, num_heads=2)
    model = LanguageModel(config)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    every = 4 if first == 0 else 3
    monitor = Monitor(model, every=every, out=folder, run="a", step=first)
    for step in range(first + 1, last + 1):
        loss = model(torch.arange(12).view(2, 6)).logsumexp(-1).mean()
        loss.backward()
        optimiser.step()
        monitor.step(loss=loss)
        if step == 20 and first == 0:
            monitor.flush()
        print(f"step {step}", flush=True)
        if first == 0 and step == (10 if handler else 30):
            time.sleep(60)


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(*json.loads(line))
            sys.exit(0)  # through atexit, where a monitor that nobody closed is closed
        os.write(1, f"child {pid}\n".encode())
        os.write(1, f"ended {os.waitpid(pid, 0)[1]}\n".encode())


if __name__ == "__main__":
    main()

"""A small GPT on the sources of Python's standard library, in a loop of one's own.

    python examples/plain_loop.py --steps 300

Two lines belong to joma: the monitor is made before the loop and told of each optimiser step.
Records go to joma-records; `joma diagnose joma-records` reads them again.
"""

import argparse
import logging
import math
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import joma
from joma.analysis.facts import Facts
from joma.monitor.verdict import judge

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 128, 8
RATE, WARMUP = 3e-3, 20


class Block(nn.Module):
    """Causal attention, then an MLP, each beside the stream."""

    def __init__(self):
        """The usual sizes."""
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        """One layer."""
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        query, key, value = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self):
        """256 bytes, learned positions."""
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        """Logits at every position."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def text() -> torch.Tensor:
    """A megabyte of Python, as bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(
        bytearray(b"".join(f.read_bytes() for f in files)[: 2**20]), dtype=torch.uint8
    )


def main(steps: int) -> None:
    """Train, then say what was seen."""
    torch.manual_seed(0)
    model, source = GPT(), text()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min(1.0, (s + 1) / WARMUP))
    rule = judge(Facts(warmup=WARMUP, sequence_length=LENGTH, vocabulary=256))
    # A model this small trains too fast to be looked at often within 1 % of its time.
    with joma.Monitor(model, every=20, judge=rule) as monitor:
        for step in range(1, steps + 1):
            start = torch.randint(len(source) - LENGTH - 1, (BATCH, 1))
            rows = source[start + torch.arange(LENGTH + 1)].long()
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            rate = schedule.get_last_lr()[0]
            optimiser.step()
            schedule.step()
            monitor.step(loss=loss, lr=rate, grad_norm=norm)
            if step % 50 == 0:
                entropy = monitor.metrics().get("joma/attention_entropy/layer_00", math.nan)
                print(f"step {step:4d}  loss {loss:.3f}  entropy of layer 0 {entropy:.3f}")
    print(f"The monitor looked {monitor.cost().observed} times.")
    print(f"Verdict on run {monitor.run}: {rule}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps")
    main(parser.parse_args().steps)

"""A small language model on the sources of Python's standard library, with Lightning.

    python examples/lightning_loop.py --steps 200

One line belongs to joma: `joma.watch(trainer)`. Readings appear in Lightning's logger; records go
to lightning-loop/joma-records.
"""

import argparse
import logging
import sysconfig
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger

import joma
from joma.models.language import LanguageConfig, LanguageModel

LENGTH, FOLDER = 128, "lightning-loop"


class Bytes(pl.LightningModule):
    """Predicts the next byte."""

    def __init__(self):
        """Two layers, as wide as a laptop likes."""
        super().__init__()
        config = LanguageConfig(vocab=256, layers=2, embed=64, hidden=256, num_heads=4)
        self.network = LanguageModel(config, seed=0)

    def training_step(self, rows, _):
        """The loss of a batch of sequences."""
        loss = F.cross_entropy(self.network(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        """AdamW at a constant rate."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def rows() -> torch.Tensor:
    """A megabyte of Python as bytes, cut into sequences."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    source = bytearray(b"".join(f.read_bytes() for f in files)[: 2**20])
    return torch.frombuffer(source, dtype=torch.uint8).view(-1, LENGTH).long()


def main(steps: int) -> None:
    """Train, then say what was seen."""
    pl.seed_everything(0)
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        default_root_dir=FOLDER,
        logger=CSVLogger(FOLDER),
        log_every_n_steps=20,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    # A model this small trains too fast to be looked at often within 1 % of its time.
    monitor = joma.watch(trainer, every=20)
    trainer.fit(Bytes(), torch.utils.data.DataLoader(rows(), batch_size=8, shuffle=True))
    header = (Path(trainer.log_dir) / "metrics.csv").read_text().partition("\n")[0]
    print(f"Lightning logged {sum('joma/' in name for name in header.split(','))} readings a time.")
    print(f"Verdict on run {monitor.run}: {monitor.verdict}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="optimiser steps")
    main(parser.parse_args().steps)

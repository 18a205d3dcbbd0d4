"""A small GPT-NeoX on the sources of Python's standard library, with the Trainer of transformers.

    python examples/hf_trainer.py --steps 300

One line belongs to joma: `joma.watch(trainer)`. Readings appear in the Trainer's own log history;
records go to hf-trainer/joma-records.
"""

import argparse
import logging
import sysconfig
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments

import joma

LENGTH = 128


def rows() -> list[dict[str, torch.Tensor]]:
    """A megabyte of Python as bytes, cut into sequences."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    source = bytearray(b"".join(f.read_bytes() for f in files)[: 2**20])
    cut = torch.frombuffer(source, dtype=torch.uint8).view(-1, LENGTH).long()
    return [{"input_ids": row, "labels": row} for row in cut]


def main(steps: int) -> None:
    """Train, then say what was seen."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=256,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
    )
    arguments = TrainingArguments(
        output_dir="hf-trainer",
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        warmup_steps=20,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(GPTNeoXForCausalLM(config), arguments, train_dataset=rows())
    # A model this small trains too fast to be looked at often within 1 % of its time.
    monitor = joma.watch(trainer, every=20)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "joma/step" in entry]
    print(f"The Trainer logged readings {len(logged)} times.")
    print(f"Verdict on run {monitor.run}: {monitor.verdict}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps")
    main(parser.parse_args().steps)

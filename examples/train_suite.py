"""Train a small GPT-NeoX on WikiText-2 and keep a suite of checkpoints, laid out as on the hub.

    python examples/train_suite.py my-suite --steps 1500
    joma sweep my-suite --probe rank,coherence --out records

Each revision is a directory `stepN` with config, tokeniser and sharded weights, safetensors and
`.bin` by turns. Needs joma[hf], and WikiText-2 (see `joma.data.wikitext`). Stopped, it goes on when
it is started again.
"""

import argparse
from pathlib import Path

from joma.experiments._suite import Suite
from joma.experiments._suite_hf import written


def main() -> None:
    """Parse, train, say what is there."""
    parser = argparse.ArgumentParser(description="Train a suite of checkpoints.")
    parser.add_argument("folder", type=Path, help="Where revisions go, one directory each.")
    for name in ("layers", "embed", "heads", "hidden", "vocab", "length", "steps", "every"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Suite(), name))
    parser.add_argument("--seed", type=int, default=0)
    chosen = vars(parser.parse_args())
    folder, seed = chosen.pop("folder"), chosen.pop("seed")
    work = folder.with_name(f"{folder.name}-training")
    losses = written(Suite(**chosen), seed, folder, work)["value"].to_pylist()
    print(f"{len(losses)} revisions in {folder}; loss {losses[0]:.3f} to {losses[-1]:.3f}")


if __name__ == "__main__":
    main()

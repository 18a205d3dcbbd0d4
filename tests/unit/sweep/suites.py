"""Small suites of checkpoints: a smooth random walk of a GPT-NeoX-shaped model, and its defects."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

CONFIG = {"model_type": "gpt_neox", "num_attention_heads": 4, "hidden_size": 32}
SHARDS = 2


def names(layers: int) -> dict[str, tuple[int, int]]:
    found = {"gpt_neox.embed_in.weight": (50, 32)}
    for i in range(layers):
        at = f"gpt_neox.layers.{i}"
        found |= {
            f"{at}.attention.query_key_value.weight": (96, 32),
            f"{at}.attention.dense.weight": (32, 32),
            f"{at}.mlp.dense_h_to_4h.weight": (128, 32),
            f"{at}.mlp.dense_4h_to_h.weight": (32, 128),
        }
    return found


def trajectory(count: int, *, layers: int = 4, seed: int = 0, drift: float = 0.03) -> list[dict]:
    """States of a model whose weights move steadily, each step partly in a new direction."""
    generator = torch.Generator().manual_seed(seed)

    def noise(shape):
        return torch.randn(*shape, generator=generator)

    weights = {n: noise(s) for n, s in names(layers).items()}
    speed = {n: noise(w.shape) for n, w in weights.items()}
    states = []
    for _ in range(count):
        states.append({n: w.clone() for n, w in weights.items()})
        for n in weights:
            speed[n] = 0.8 * speed[n] + 0.6 * noise(weights[n].shape)
            weights[n] += drift * speed[n]
    return states


def revision_names(count: int, every: int = 1000) -> list[str]:
    return [f"step{i * every}" for i in range(count)]


def shard_of(name: str) -> str:
    """The lower half of the model is in the first file."""
    low = ".layers." not in name or int(name.split(".")[2]) < 2
    return f"model-0000{1 if low else 2}-of-00002.safetensors"


def save(folder: Path, states: dict[str, dict]) -> Path:
    """One directory per revision, in two shards with an index, and a config."""
    for revision, tensors in states.items():
        place = folder / revision
        place.mkdir(parents=True)
        where = {name: shard_of(name) for name in tensors}
        for shard in sorted(set(where.values())):
            kept = {n: t.contiguous() for n, t in tensors.items() if where[n] == shard}
            save_file(kept, place / shard)
        (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        (place / "config.json").write_text(json.dumps(CONFIG))
    return folder

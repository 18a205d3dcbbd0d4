import json
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file

from joma.sources._retry import Retry
from standin.hub import Hub

RETRY = Retry(first=0.005, longest=0.05)


@pytest.fixture
def tensors():
    """A small state dictionary, with every kind of number that weights come in."""
    generator = torch.Generator().manual_seed(0)
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    found = {
        f"layers.{i}.{name}": torch.randn(64, 48, generator=generator).to(kinds[i % 4])
        for i in range(8)
        for name in ("up", "down")
    }
    found["position"] = torch.arange(7)
    found["mask"] = torch.tensor([True, False])
    found["scalar"] = torch.tensor(2.5)
    found["empty"] = torch.empty(0, 3)
    return found


@pytest.fixture
def suite(tmp_path, tensors):
    """A repository of four revisions: both formats, whole and in two shards."""
    folder = tmp_path / "owner" / "model"
    names = list(tensors)
    halves = {f"{i}": dict.fromkeys(names[i::2]) for i in (0, 1)}
    for revision, suffix in {"step10": "safetensors", "step2": "bin"}.items():
        (folder / revision).mkdir(parents=True)
        stem = "model" if suffix == "safetensors" else "pytorch_model"
        _save(tensors, folder / revision / f"{stem}.{suffix}")
        shards = folder / f"{revision}0"
        shards.mkdir()
        places = {}
        for i, half in halves.items():
            file = f"{stem}-{i}.{suffix}"
            _save({n: tensors[n] for n in half}, shards / file)
            places |= dict.fromkeys(half, file)
        (shards / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": places}))
    for revision in folder.iterdir():
        (revision / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    return folder


def _save(tensors, path):
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(OrderedDict(tensors), path)


@pytest.fixture
def hub(suite):
    """The stand-in hub with `owner/model`."""
    with Hub(suite.parent.parent) as server:
        yield server

"""Small training runs of every kind, and the digest of everything a monitor might disturb.

    python training.py STEPS CASE …   prints for each case whether watching it left no trace

A process of its own, because the runtime type checks of the tests draw from Python's generator.
"""

import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from joma.metrics.entropy import AttentionEntropyProbe
from joma.models.language import LanguageConfig, LanguageModel
from joma.monitor.monitor import Monitor
from joma.monitor.sinks.base import AbstractSink

VOCAB, LENGTH = 40, 12


@dataclass
class Case:
    """A model and how it is trained. Batches, dropout and NumPy draw from the global generators."""

    model: nn.Module
    forward: Callable = lambda model, tokens: model(tokens)
    autocast: bool = False
    accumulate: int = 1
    losses: list = field(default_factory=list)


def small(**more) -> LanguageModel:
    settings = {"vocab": VOCAB, "layers": 2, "embed": 16, "hidden": 24, "num_heads": 2}
    return LanguageModel(LanguageConfig(**(settings | {"dropout": 0.2} | more)), seed=3)


def hf(name: str, **more) -> nn.Module:
    """A small model of transformers, with dropout."""
    import transformers

    common = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    words = {"vocab_size": VOCAB, "max_position_embeddings": 32, "intermediate_size": 24}
    config = getattr(transformers, f"{name}Config")(**(common | words | more))
    config.use_cache = False
    torch.manual_seed(5)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def logits(model, tokens):
    return model(input_ids=tokens).logits


def eager() -> Case:
    return Case(small())


def accumulation() -> Case:
    return Case(small(), accumulate=3)


def bf16() -> Case:
    return Case(small(), autocast=True)


def checkpointing() -> Case:
    model = hf("GPTNeoX", hidden_dropout=0.1, attention_dropout=0.1)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return Case(model, logits)


def lora() -> Case:
    import peft

    model = hf("Llama", num_key_value_heads=1, attention_dropout=0.1)
    targets = ["q_proj", "up_proj"]
    config = peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=targets, init_lora_weights=False)
    return Case(peft.get_peft_model(model, config), logits)


class Counted(nn.Module):
    """Counts tokens per forward in a buffer, in evaluation mode too, as routers do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("seen", torch.zeros(VOCAB))

    def forward(self, tokens):
        self.seen += F.one_hot(tokens, VOCAB).sum((0, 1))
        return self.inner(input_ids=tokens, output_router_logits=True).logits


def moe() -> Case:
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2, "num_key_value_heads": 1}
    return Case(Counted(hf("Mixtral", attention_dropout=0.1, router_jitter_noise=0.1, **experts)))


class Restless(nn.Module):
    """Replaces a buffer in each forward, and adds another."""

    def __init__(self):
        super().__init__()
        self.inner = small()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, tokens):
        self.register_buffer("seen", self.seen + 1)
        self.register_buffer("late", torch.ones(1))
        return self.inner(tokens)


def restless() -> Case:
    return Case(Restless())


class Draws(AttentionEntropyProbe):
    """A probe without manners."""

    def observe(self, seen):
        self.draw()
        return super().observe(seen)

    def readings(self, place, sums):
        self.draw()
        return super().readings(place, sums)

    @staticmethod
    def draw():
        torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002


class DrawsLate(AbstractSink):
    """Draws in a thread of its own, where nobody can put it back: the control."""

    def log(self, entry):
        torch.rand(1)


def blocks() -> Case:
    model = small()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend="aot_eager")
    return Case(model)


def in_place() -> Case:
    model = small()
    model.compile(backend="aot_eager")
    return Case(model)


def whole() -> Case:
    return Case(torch.compile(hf("GPTNeoX", hidden_dropout=0.1), backend="inductor"), logits)


# name -> the run, and what the monitor is told
CASES = {
    "eager": (eager, {}),
    "accumulation": (accumulation, {}),
    "bf16": (bf16, {}),
    "checkpointing": (checkpointing, {}),
    "lora": (lora, {}),
    "moe": (moe, {}),
    "restless": (restless, {}),
    "draws": (eager, {"probes": [Draws()]}),
    "budget": (eager, {"every": None, "budget": 0.2}),
    "train": (checkpointing, {"source": "train"}),
    "train budget": (moe, {"source": "train", "every": None, "budget": 0.2}),
}
COMPILED = {"blocks": (blocks, {}), "in place": (in_place, {}), "whole": (whole, {})}
CONTROL = {"control": (eager, {"sinks": [DrawsLate()]})}


def train(case: Case, steps: int, monitor: dict | None) -> tuple[str, Monitor | None]:
    """Train, watched if `monitor` has settings. Gives the digest of the end and of all losses."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    model = case.model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-2)
    watching = nullcontext() if monitor is None else Monitor(model, **monitor)
    with watching as watch:
        for _ in range(steps):
            for _ in range(case.accumulate):
                tokens = torch.randint(VOCAB, (4, LENGTH + 1)) + random.randint(0, 1)
                tokens = (tokens + int(np.random.randint(2))) % VOCAB  # noqa: NPY002
                with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
                    out = case.forward(model, tokens[:, :-1])
                    loss = F.cross_entropy(out.flatten(0, 1).float(), tokens[:, 1:].flatten())
                (loss / case.accumulate).backward()
            norm = nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            optimiser.zero_grad()
            case.losses.append(float(loss.detach()))
            if watch is not None:
                watch.step(loss=loss, lr=1e-2, grad_norm=norm)
    return digest(model, optimiser, case.losses), watch


def digest(model, optimiser, losses) -> str:
    """SHA-256 of weights, buffers, optimiser state, losses and random states."""
    parts = [
        *model.state_dict().values(),
        *model.buffers(),
        torch.tensor(losses, dtype=torch.double),
    ]
    for state in optimiser.state_dict()["state"].values():
        parts += [state[name] for name in sorted(state)]
    found = hashlib.sha256()
    for tensor in [*parts, torch.get_rng_state()]:
        plain = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(plain.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    found.update(repr(random.getstate()).encode())
    found.update(np.random.get_state()[1].tobytes())  # noqa: NPY002
    found.update(repr([m.training for m in model.modules()]).encode())
    return found.hexdigest()


def main(steps: int, names: list[str]) -> dict[str, dict]:
    """Each case twice, bare and watched."""
    answer = {}
    for name in names:
        make, settings = (CASES | COMPILED | CONTROL)[name]
        bare, _ = train(make(), steps, None)
        torch._dynamo.reset()
        with tempfile.TemporaryDirectory() as out:
            watched, monitor = train(make(), steps, {"every": 4, "out": out} | settings)
        torch._dynamo.reset()
        answer[name] = {
            "same": bare == watched,
            "observed": monitor.cost().observed,
            "metrics": sorted(monitor.metrics()),
        }
    return answer


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2:])))

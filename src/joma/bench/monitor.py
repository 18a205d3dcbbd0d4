"""What the monitor costs: of the time of training steps, of memory, and of compilation."""

import gc
import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma._core.extras import extra
from joma.bench._timing import one_thread
from joma.bench.base import Bench, Row
from joma.models.language import LanguageConfig, LanguageModel
from joma.monitor.clock import Cost
from joma.monitor.monitor import Monitor

STEPS: Final = 300
PAIRS: Final = 5
EVERY: Final = 32
"""What the budget leads to here, give or take a factor of two."""
BATCH: Final = 16
LENGTH: Final = 256
VOCAB: Final = 512
OBSERVED: Final = 5000


@dataclass
class Training:
    """A model in training, one step at a time."""

    model: nn.Module
    logits: Callable[[nn.Module, Tensor], Tensor]
    batch: tuple[int, int]
    monitor: Monitor | None = None

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(0)

    def steps(self, count: int) -> float:
        """Make steps. Gives their wall time, the monitor's included."""
        start = time.perf_counter()
        for _ in range(count):
            tokens = torch.randint(VOCAB, self.batch, generator=self.generator)
            scores = self.logits(self.model, tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.step()
            self.optimiser.zero_grad()
            if self.monitor is not None:
                self.monitor.step(loss=loss, lr=1e-3, grad_norm=norm)
        return time.perf_counter() - start


def run(steps: int = STEPS, pairs: int = PAIRS, observed: int = OBSERVED) -> Iterator[Row]:
    """Time with the defaults, time in paired stretches, memory, compilation."""
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        yield from _budget(steps, out)
        yield from _paired(pairs, out)
        yield from _memory(observed, out)
        yield from _compilation(out)


def neox(layers: int = 4, embed: int = 256) -> nn.Module:
    """A GPT-NeoX of transformers, with dropout."""
    with extra("hf", packages=("transformers",), purpose="The monitor benchmark"):
        transformers = importlib.import_module("transformers")
    config = transformers.GPTNeoXConfig(
        hidden_size=embed,
        num_hidden_layers=layers,
        num_attention_heads=embed // 64,
        intermediate_size=4 * embed,
        vocab_size=VOCAB,
        max_position_embeddings=LENGTH,
        hidden_dropout=0.1,
        use_cache=False,
    )
    model: nn.Module = transformers.GPTNeoXForCausalLM(config)
    return model.train()


def _neox_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens).logits
    return logits


def _large(monitor: Callable[[nn.Module], Monitor] | None) -> Training:
    model = neox()
    watching = None if monitor is None else monitor(model)
    return Training(model, _neox_logits, (BATCH, LENGTH + 1), watching)


def _budget(steps: int, out: Path) -> Iterator[Row]:
    """Defaults, from the first step to the last."""
    training = _large(lambda model: Monitor(model, out=out, run="budget"))
    assert training.monitor is not None
    cpu = time.process_time()
    training.steps(steps)
    training.monitor.close()
    cpu = time.process_time() - cpu
    cost: Cost = training.monitor.cost()
    tokens = BATCH * LENGTH
    yield Row(f"seconds of a step of {tokens} tokens, 4 layers, d = 256", cost.total / steps, "s")
    yield Row(f"observations in {steps} steps", cost.observed)
    yield Row("own CPU time, of all CPU time", 100 * cost.cpu / cpu, "%", 1.0)
    yield Row("own wall time, of all wall time; the budget is 1", cost.percent, "%", 1.5)


def _paired(pairs: int, out: Path) -> Iterator[Row]:
    """A watched training and two bare ones, a step of each in turn: they meet the same neighbours.

    Ratios are of blocks of as many steps as lie between two observations. The two bare ones show
    what the machine alone does to such a ratio.
    """
    watched = _large(lambda model: Monitor(model, every=EVERY, out=out, run="paired"))
    trainings = (watched, _large(None), _large(None))
    for training in trainings:
        training.steps(1)  # the first observation is not what a step costs
    wall, cpu, noise = [], [], []
    for _ in range(pairs):
        blocks = [_alternating(trainings) for _ in range(EVERY)]
        seconds, work = (
            [sum(step[n][kind] for step in blocks) for n in range(3)] for kind in (0, 1)
        )
        wall.append(2 * seconds[0] / (seconds[1] + seconds[2]))
        cpu.append(2 * work[0] / (work[1] + work[2]))
        noise.append(seconds[1] / seconds[2])
    assert watched.monitor is not None
    watched.monitor.close()
    about = f"step time, watched every {EVERY} / bare, median of {pairs} blocks"
    yield Row(about, _percent(wall), "%", 2.5)
    yield Row("the same in CPU time of the process", _percent(cpu), "%")
    yield Row("the same of two bare ones, in wall time", _percent(noise), "%")


def _alternating(trainings: tuple[Training, ...]) -> list[tuple[float, float]]:
    """Wall and CPU seconds of one step of each."""
    found = []
    for training in trainings:
        work = time.process_time()
        found.append((training.steps(1), time.process_time() - work))
    return found


def _percent(ratios: list[float]) -> float:
    return 100 * (statistics.median(ratios) - 1)


def _memory(observed: int, out: Path) -> Iterator[Row]:
    """A small model that is observed at every step."""
    config = LanguageConfig(vocab=VOCAB, layers=1, embed=16, hidden=16, num_heads=2)
    model = LanguageModel(config)
    monitor = Monitor(model, every=1, out=out, run="memory")
    training = Training(model, lambda net, tokens: net(tokens), (2, 17), monitor)
    fresh = _resident()
    training.steps(max(1, observed // 5))
    monitor.flush()  # the first write loads what writes
    before = _resident()
    training.steps(observed)
    grown = _resident() - before
    monitor.close()
    yield Row("memory to start, up to the first write", (before - fresh) / 2**20, "MB")
    yield Row(f"memory growth over {observed} observed steps", grown / 2**20, "MB", 5.0)


def _compilation(out: Path) -> Iterator[Row]:
    """A compiled model: the first step of the bare one, and of the watched one."""
    for name in ("", "bare", "watched"):  # the very first loads the compiler, and does not count
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model: Any = torch.compile(neox(layers=1, embed=64))
        monitor = Monitor(model, every=1, out=out, run="compiled") if name == "watched" else None
        training = Training(model, _neox_logits, (2, 33), monitor)
        with torch._inductor.config.patch(force_disable_caches=True):
            first = training.steps(1)
        training.steps(3)
        if monitor is not None:
            monitor.close()
        if name:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            yield Row(f"first step of a compiled model, {name}", first, "s")
            yield Row(f"graphs compiled in 4 steps, {name}", graphs)


def _resident() -> int:
    """Bytes in memory, of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


BENCH = Bench(
    "Monitor: its share of the time of a 4-layer GPT-NeoX step of 4096 tokens with the defaults, "
    "what a step takes with and without it, memory and compilation; one thread.",
    run,
)

"""Rows of `joma bench kernels` about attention, beside the bare kernel and the dense matrix.

Memory is the growth of the resident peak of a fresh process during one call.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from joma.bench._timing import minima, one_thread
from joma.bench.base import Row
from joma.metrics import entropy, logits
from joma.metrics.entropy import AttentionEntropyProbe, attention_entropy
from joma.probes.base import AbstractStreamProbe, AttentionCall, Place
from joma.records.schema import Reading

HEADS: Final = 12
WIDTH: Final = 64
LONG: Final = 8192
LONG_HEADS: Final = 2  # the dense scores of one head take 256 MB
TRIALS: Final = 200


def attention_rows() -> Iterator[Row]:
    """Cost, memory and error of entropy, largest logit and sampled rows."""
    with one_thread():
        for length in (512, 1024, 2048):
            yield from _beside_the_kernel(length)
        yield Row("entropy at 2048: extra memory", _extra_memory("ours", 2048, HEADS), "MB", 64.0)
        yield from _errors(2048)
        yield from _beside_dense(LONG, LONG_HEADS)
        name = f"sampled entropy: 95 % intervals that hold, {TRIALS} trials"
        yield Row(name, coverage(TRIALS), bar=0.93, at_least=True)


def tensors(length: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussian queries, keys and values, one batch element."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, heads, length, WIDTH, generator=generator)
    return query, key, value


def dense_scores(query: Tensor, key: Tensor) -> Float[Tensor, "batch head query key"]:
    """The matrix that everything here does without, causal."""
    scores: Tensor = WIDTH**-0.5 * query @ key.mT
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf)


def dense_entropy(query: Tensor, key: Tensor) -> Float[Tensor, "batch head query"]:
    """Entropy as everyone computes it."""
    terms: Tensor = torch.special.entr(dense_scores(query, key).softmax(-1))
    return terms.sum(-1)


def coverage(trials: int, length: int = 512, heads: int = 8) -> float:
    """Share of heads and trials in which the stated interval holds the exact entropy.

    Every query has its own sharpness, so that heads mix flat rows and peaked ones.
    """
    query, key, _ = tensors(length, heads)
    sharpness = torch.rand(heads, length, 1, generator=torch.Generator().manual_seed(1))
    call = _causal(4 * sharpness.square() * query, key)
    truth = [reading.value for reading in _entropies(entropy.PROBE, call)]
    hits = 0
    for seed in range(trials):
        stated = _entropies(AttentionEntropyProbe(method="sampled", seed=seed), call)
        for reading, value in zip(stated, truth, strict=True):
            assert reading.lower is not None and reading.upper is not None
            hits += reading.lower <= value <= reading.upper
    return hits / (trials * heads)


def _beside_the_kernel(length: int) -> Iterator[Row]:
    query, key, value = tensors(length, HEADS)

    def observed(*probes: AbstractStreamProbe, sharpness: float = 1.0) -> Callable[[], object]:
        scaled = sharpness * query

        def observe() -> None:
            call = _causal(scaled, key)
            for probe in probes:
                probe.observe(call)

        return observe

    rounds = 20_480 // length  # short calls need more of them to meet a quiet moment
    kernel = {"kernel": lambda: scaled_dot_product_attention(query, key, value, is_causal=True)}
    barred = minima(kernel | {"exact": observed(entropy.PROBE)}, rounds)
    yield Row(
        f"entropy / attention kernel at {length}", barred["exact"] / barred["kernel"], "x", 1.3
    )
    seconds = minima(
        kernel
        | {
            "tiles": observed(AttentionEntropyProbe(method="tiles")),
            "flat": observed(entropy.PROBE, logits.PROBE),
            "peaked": observed(entropy.PROBE, logits.PROBE, sharpness=3.0),
            "bracket": observed(entropy.PROBE, logits.AttentionLogitProbe(exact=False)),
            "sampled": observed(AttentionEntropyProbe(method="sampled")),
        },
        rounds // 2,
    )
    ratio = {name: least / seconds["kernel"] for name, least in seconds.items()}
    yield Row("... by tiles", ratio["tiles"], "x")
    yield Row("... with sinks and bracketed logit", ratio["bracket"], "x")
    yield Row("... with sinks and exact logit, flat heads", ratio["flat"], "x")
    yield Row("... with sinks and exact logit, peaked heads", ratio["peaked"], "x")
    yield Row("... from 16 sampled rows", ratio["sampled"], "x")


def _errors(length: int) -> Iterator[Row]:
    query, key, _ = tensors(length, HEADS)
    error = attention_entropy(query, key, causal=True) - dense_entropy(query, key)
    yield Row(f"entropy at {length}: error", float(error.abs().max()), "nats", 1e-5)
    largest = dense_scores(query, key).amax((0, 2, 3))
    error = logits.max_attention_logit(_causal(query, key)) - largest
    yield Row(f"largest logit at {length}: error", float(error.abs().max()), "", 1e-4)


def _beside_dense(length: int, heads: int) -> Iterator[Row]:
    query, key, _ = tensors(length, heads)
    ours = {"ours": lambda: attention_entropy(query, key, causal=True)}
    seconds = minima(ours | {"dense": lambda: dense_entropy(query, key)}, rounds=4)
    # The quick one a few times more: the slow one averages over its neighbours by itself.
    ratio = seconds["dense"] / min(seconds["ours"], minima(ours, rounds=12)["ours"])
    yield Row(f"dense / entropy at {length}: time", ratio, "x", 10.0, at_least=True)
    memory, dense = (_extra_memory(which, length, heads) for which in ("ours", "dense"))
    yield Row("... memory", dense / memory, "x", 8.0, at_least=True)
    yield Row("... extra memory of the entropy", memory, "MB")
    yield Row("... extra memory of the dense entropy", dense, "MB")


def _causal(query: Tensor, key: Tensor) -> AttentionCall:
    return AttentionCall(query=query, key=key, scale=WIDTH**-0.5, causal=True)


def _entropies(probe: AttentionEntropyProbe, call: AttentionCall) -> list[Reading]:
    readings = probe.readings(Place(layer=0), probe.observe(call))
    return [reading for reading in readings if reading.metric == "attention_entropy"]


def _extra_memory(which: str, length: int, heads: int) -> float:
    code = "from joma.bench._attention import peak_growth; "
    code += f"print(peak_growth({which!r}, {length}, {heads}))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def peak_growth(which: str, length: int, heads: int) -> float:
    """Megabytes by which one call raises the resident peak of this process, after a small one."""
    torch.set_num_threads(1)
    compute = {"ours": lambda q, k: attention_entropy(q, k, causal=True), "dense": dense_entropy}
    small, large = tensors(64, heads)[:2], tensors(length, heads)[:2]
    compute[which](*small)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = _peak()
    compute[which](*large)
    return (_peak() - before) / 1e6


def _peak() -> float:
    """Largest resident bytes since the last reset, by the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

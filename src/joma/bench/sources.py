"""Bytes read over bytes asked for: lower MLP matrices out of a file shaped like Pythia-410m.

Read from a local disk and over HTTP, as safetensors and as `.bin`, headers included. Over
HTTP both ends count: our client, and the stand-in hub of the test folder, which also
answers for lists of files. On disk the kernel counts too, after the file has left its cache.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from joma import sources
from joma._core.errors import JomaError
from joma.bench.base import Bench, Row

WIDTH, VOCABULARY = 1024, 50304
"""Of Pythia-410m, which has 24 layers in fp16."""
REPOSITORY = "standin/pythia-410m"
HTTP_BAR, DISK_BAR = 1.01, 1.05

_LOWER = re.compile(r".*\.mlp\.dense_h_to_4h\.weight")
_STANDIN = Path(__file__).resolve().parents[3] / "tests"


def run(*, layers: int = 24, vocabulary: int = VOCABULARY) -> Iterator[Row]:
    """Write the two files, then read the lower MLP matrices of each from disk and over HTTP."""
    with tempfile.TemporaryDirectory(prefix="joma-bench-", dir=os.environ.get("TMPDIR")) as folder:
        revisions = write(Path(folder) / REPOSITORY, layers, vocabulary)
        size = sum(f.stat().st_size for f in Path(folder).rglob("model.safetensors"))
        yield Row("size of the safetensors file", size / 1e6, "MB")
        for revision, kind in revisions.items():
            yield from _disk(Path(folder) / REPOSITORY, revision, kind)
        with _standin(folder) as endpoint:
            for revision, kind in revisions.items():
                yield from _http(endpoint, revision, kind)


def _disk(folder: Path, revision: str, kind: str) -> Iterator[Row]:
    done = _child({}, "local", f"{folder}@{revision}")
    yield Row(f"{kind}, disk: bytes asked for", done["asked"] / 1e6, "MB")
    yield Row(
        f"{kind}, disk: sum of read lengths / asked", done["read"] / done["asked"], "x", DISK_BAR
    )
    kernel = done["kernel"] / done["asked"]
    if kernel:
        yield Row(f"{kind}, disk: read_bytes of the kernel / asked", kernel, "x", DISK_BAR)
    else:  # a file system in memory, or one that does not give its cache up
        yield Row(f"{kind}, disk: the kernel read nothing from disk here", float("nan"), "x")


def _http(endpoint: str, revision: str, kind: str) -> Iterator[Row]:
    before = _log(endpoint)
    done = _child({"HF_ENDPOINT": endpoint}, "hub", f"{REPOSITORY}@{revision}")
    after = _log(endpoint)
    sent = after["sent"] - before["sent"]
    yield Row(f"{kind}, HTTP: bytes received / asked", done["read"] / done["asked"], "x", HTTP_BAR)
    yield Row(
        f"{kind}, HTTP: bytes sent by the server / asked", sent / done["asked"], "x", HTTP_BAR
    )
    yield Row(f"{kind}, HTTP: requests", after["requests"] - before["requests"])


def write(folder: Path, layers: int, vocabulary: int) -> dict[str, str]:
    """Two revisions of random weights, one of each format: their names, and the formats."""
    tensors = pythia(layers, vocabulary)
    for revision in ("step0", "step1"):
        (folder / revision).mkdir(parents=True)
    save_file(tensors, folder / "step0" / "model.safetensors")
    torch.save(tensors, folder / "step1" / "pytorch_model.bin")
    return {"step0": "safetensors", "step1": ".bin"}


def pythia(layers: int, vocabulary: int = VOCABULARY, width: int = WIDTH) -> dict[str, Tensor]:
    """Random fp16 weights under the names and in the shapes of a GPT-NeoX checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {"gpt_neox.embed_in.weight": (vocabulary, width)}
    for layer in range(layers):
        block = f"gpt_neox.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"{block}.{norm}.{part}": (width,) for part in ("bias", "weight")}
        linear = {
            "attention.query_key_value": (3 * width, width),
            "attention.dense": (width, width),
            "mlp.dense_h_to_4h": (4 * width, width),
            "mlp.dense_4h_to_h": (width, 4 * width),
        }
        for name, shape in linear.items():
            shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
    shapes |= {f"gpt_neox.final_layer_norm.{part}": (width,) for part in ("bias", "weight")}
    shapes["embed_out.weight"] = (vocabulary, width)
    generator = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(shape, generator=generator) / width**0.5).half()
        for name, shape in shapes.items()
    }


def read(kind: str, where: str) -> dict[str, float]:
    """Read the lower MLP matrices once; the bytes they have, and the bytes it took."""
    source = sources.open(f"{kind}:{where}")
    revision = source.revisions()[0].name
    if kind == "local":
        _leave_cache(Path(source.pretrained(revision)["pretrained_model_name_or_path"]))
    before = _kernel_bytes()
    names = [name for name in source.index(revision).tensors if _LOWER.fullmatch(name)]
    tensors = source.read(revision, names)
    asked = sum(t.numel() * t.element_size() for t in tensors.values())
    return {"asked": asked, "read": source.traffic.bytes, "kernel": _kernel_bytes() - before}


BENCH = Bench("Partial reads: bytes read over bytes asked for, disk and HTTP, both formats.", run)


def _leave_cache(folder: Path) -> None:
    """Ask the kernel to forget these files, once they are on disk."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _kernel_bytes() -> int:
    """Bytes this process caused to be read from a disk."""
    found = re.search(r"^read_bytes: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _child(variables: dict[str, str], kind: str, where: str) -> dict[str, Any]:
    """Read in a fresh process: its counters start at zero, and `HF_ENDPOINT` is read on import."""
    code = "import json, sys; from joma.bench import sources as s"
    code += "; print(json.dumps(s.read(sys.argv[1], sys.argv[2])))"
    done = subprocess.run(
        [sys.executable, "-c", code, kind, where],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextmanager
def _standin(folder: str) -> Iterator[str]:
    """The address of a stand-in hub that serves `folder`, in its own process."""
    if not (_STANDIN / "standin" / "hub.py").is_file():
        raise JomaError(
            "Reading over HTTP is measured against the stand-in hub in the tests folder, which is "
            "not part of an installed joma. Run `joma bench sources` in a checkout."
        )
    server = subprocess.Popen(
        [sys.executable, "-m", "standin.hub", folder],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_STANDIN,
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip().partition("=")[2]
    finally:
        server.terminate()
        server.communicate()


def _log(endpoint: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{endpoint}/standin/log") as answer:
        found: dict[str, Any] = json.load(answer)
    return found

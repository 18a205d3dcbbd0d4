"""Python source of the standard library as text whose syntax tree is the hierarchy."""

import sysconfig
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from joma._core.errors import JomaError
from joma._core.typing import Array
from joma.data.python_source import ParsedSource, parse_files
from joma.experiments._fig5_task import Look, Task

TRAINED = (
    *("argparse", "ast", "calendar", "cgi", "configparser", "csv", "dataclasses", "difflib"),
    *("doctest", "fractions", "ftplib", "inspect", "ipaddress", "locale", "mailbox", "optparse"),
    *("pickle", "smtplib", "subprocess", "threading", "turtle", "typing"),
)
"""Modules that are trained on; those that a version of Python does not have are left out."""
LOOKED_AT = ("pprint", "shutil", "statistics", "tarfile", "textwrap")
"""Modules that attention is measured on."""
CLIMBS = (0, 1, 2, 3, 4)
"""Edges from the query's node up to the common ancestor; the last stands for more, too."""
LATENT_LEVELS, TYPES = 3, 10
_OTHER = ("<name>", "<number>", "<string>", "<other>")


@dataclass(frozen=True, kw_only=True)
class Source:
    """How source code is cut into sequences."""

    context: int = 64
    words: int = 500  # the most common ones; others are <name>, <number>, <string> or <other>


def task(config: Source, seed: int, samples: int, batch: int) -> Task:
    """Windows of the training modules, and those of other modules that are looked at."""
    generator = torch.Generator().manual_seed(seed)
    ids, text = _training_text(config.words)

    def draw() -> tuple[Int[Tensor, "batch context"], Int[Tensor, "batch context"]]:
        last = len(text) - config.context
        start = torch.randint(last, (batch, 1), generator=generator)
        drawn = text[start + torch.arange(config.context + 1)]
        return drawn[:, :-1], drawn[:, 1:]

    return Task(
        vocabulary=len(ids),
        levels=CLIMBS,
        positions=True,
        look=_look(config, _files(LOOKED_AT), ids, samples, generator),
        batch=draw,
    )


def climbs(paths: Int[Array, "query depth"]) -> Int[Array, "query query"]:
    """Edges from each token's node up to its common ancestor with every other token."""
    same = (paths[:, None] == paths[None]) & (paths[:, None] >= 0)
    return np.asarray((paths >= 0).sum(1)[:, None] - same.sum(-1))


def paths_of(
    node: Int[Array, " context"], parent: Int[Array, " nodes"], depth: Int[Array, " nodes"]
) -> Int[Array, "context depth"]:
    """The nodes from the module down to each token's; -1 behind the last."""
    whole = np.full((len(parent), depth.max() + 1), -1)
    for number, (above, level) in enumerate(zip(parent, depth, strict=True)):
        if above >= 0:
            whole[number] = whole[above]
        whole[number, level] = number
    return np.asarray(whole[node])


def _look(
    config: Source,
    files: tuple[ParsedSource, ...],
    ids: dict[str, int],
    samples: int,
    generator: torch.Generator,
) -> Look:
    tokens, true, shuffled, types = [], [], [], []
    per_file = -(-samples // len(files))
    for file in files:
        node, parent, depth = (t.numpy() for t in (file.node, file.parent, file.depth))
        order = torch.randperm(len(node), generator=generator).numpy()
        paths, other = (paths_of(n, parent, depth) for n in (node, node[order]))
        starts = torch.randint(len(node) - config.context, (per_file,), generator=generator)
        numbers = _numbers(file, ids)
        for start in starts.tolist():
            window = slice(start, start + config.context)
            tokens.append(numbers[window])
            true.append(torch.from_numpy(climbs(paths[window])))
            shuffled.append(torch.from_numpy(climbs(other[window])))
            types += _types_above(file, window)
    drawn = torch.randperm(len(tokens), generator=generator)[:samples]
    rows = np.array(types).reshape(len(tokens), config.context, LATENT_LEVELS)[drawn.numpy()]
    ids_seen = torch.stack(tokens)[drawn]
    return Look(
        tokens=ids_seen,
        ancestor=_counted(torch.stack(true)[drawn]),
        shuffled=_counted(torch.stack(shuffled)[drawn]),
        latents=tuple(_latents(rows[..., level].ravel()) for level in range(LATENT_LEVELS)),
        present=torch.ones_like(ids_seen, dtype=torch.bool),
        whole_rows=False,
    )


def _types_above(file: ParsedSource, window: slice) -> list[list[str]]:
    """For each token the types of its node, its parent and so on; of the module at the top."""
    found = []
    for node in file.node[window].tolist():
        row = []
        for _ in range(LATENT_LEVELS):
            row.append(file.types[node])
            node = max(int(file.parent[node]), 0)
        found.append(row)
    return found


def _latents(types: Array) -> Bool[Tensor, "rows nodes_of_level"]:
    common = [name for name, _ in Counter(types.tolist()).most_common(TYPES)]
    return torch.from_numpy(types[:, None] == np.array(common))


def _counted(climb: Int[Tensor, "samples query key"]) -> Int[Tensor, "samples query key"]:
    earlier = torch.ones_like(climb, dtype=torch.bool).tril(-1)
    return climb.clamp(max=CLIMBS[-1]).where(earlier, -1)


@cache
def _files(modules: tuple[str, ...]) -> tuple[ParsedSource, ...]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = parse_files(p for name in modules if (p := folder / f"{name}.py").is_file()).files
    if not found:
        raise JomaError(
            f"None of the modules {', '.join(modules)} has source in {folder}. This experiment "
            "needs a Python whose standard library is there as text."
        )
    return found


@cache
def _training_text(words: int) -> tuple[dict[str, int], Int[Tensor, " context"]]:
    """Number of each word, and all modules as numbers, one after the other."""
    files = _files(TRAINED)
    counts = Counter(word for file in files for word in file.words)
    common = [word for word, _ in counts.most_common(words)]
    ids = {word: number for number, word in enumerate((*_OTHER, *common))}
    return ids, torch.cat([_numbers(file, ids) for file in files])


def _numbers(file: ParsedSource, ids: dict[str, int]) -> Int[Tensor, " context"]:
    return torch.tensor([ids.get(word, ids[_class_of(word)]) for word in file.words])


def _class_of(word: str) -> str:
    if word.isidentifier():
        return "<name>"
    if word[0].isdigit():
        return "<number>"
    return "<string>" if word[-1] in "\"'" else "<other>"

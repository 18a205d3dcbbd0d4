"""Writes the reference pages that are read off the code, so that they cannot rot."""

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import results

import joma
from joma import experiments
from joma.bench import diagnosis
from joma.cli.ls import ROOMS
from joma.cli.main import app
from joma.records.schema import COLUMNS
from joma.theory.errata import registry as errata

API_ROOMS = (
    "theory",
    "metrics",
    "probes",
    "architectures",
    "models",
    "data",
    "sources",
    "records",
    "monitor",
    "sweep",
    "analysis",
    "experiments",
    "report",
    "bench",
    "_core",
)
TESTS = Path(joma.__file__).resolve().parents[2] / "tests" / "numerics"


def write_all(folder: Path) -> None:
    """Write every generated page below `folder`, leaving unchanged files untouched."""
    pages = {
        "fragments/schema.md": schema(),
        "fragments/errata.md": errata_table(),
        "fragments/diagnosis.md": diagnosis.document(),
        "paper-map.md": paper_map(),
        "ledger.md": ledger(),
        "cli.md": cli(),
        **results.pages(folder),
        **api(),
    }
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def schema() -> str:
    """The record columns, with the sentence that documents each field."""
    lines = ["| column | type | may be absent | meaning |", "|---|---|---|---|"]
    for c in COLUMNS:
        absent = "yes" if c.nullable else "no"
        meaning = field_docs(c.owner)[c.name]
        lines.append(f"| `{c.name}` | {c.dtype} | {absent} | {meaning} |")
    return "\n".join(lines) + "\n"


def field_docs(owner: type) -> dict[str, str]:
    """The string below each field of a dataclass, or the class's name for it."""
    source = inspect.getsource(owner)
    found = re.findall(
        r'^    (\w+): [^\n]+\n    """(.+?)"""', source, flags=re.MULTILINE | re.DOTALL
    )
    docs = {name: " ".join(text.split()) for name, text in found}
    missing = {f.name for f in dataclasses.fields(owner)} - set(docs) - {"reading"}
    assert not missing, f"{owner.__name__} does not document {missing}"
    return docs


def errata_table() -> str:
    """Each erratum with its numbers, computed now."""
    blocks = []
    for erratum in sorted((errata.load(n) for n in errata.names()), key=lambda e: e.number):
        rows = ["| quantity | printed | corrected | judge |", "|---|---|---|---|"]
        for e in erratum.evidence():
            truth = f"{e.truth:.8g} ({e.judge})"
            row = (e.quantity, f"{e.printed:.8g}", f"{e.corrected:.8g}", truth)
            rows.append("| " + " | ".join(x.replace("|", "\\|") for x in row) + " |")
        blocks.append(
            f"### E{erratum.number}: {erratum.where}\n\n"
            f"- printed: `{erratum.printed}`\n- holds: `{erratum.corrected}`\n\n" + "\n".join(rows)
        )
    return "\n\n".join(blocks) + "\n"


def paper_map() -> str:
    """Each item of the paper: what realises it, what tests it, and what became of it."""
    trials: dict[str, list[str]] = defaultdict(list)
    for name in experiments.registry.names():
        for item in _items(name):
            trials[item].append(name)
    rows = [*_theory_rows(), *_figure_rows(trials)]
    lines = [
        "# Paper map",
        "",
        "Each item of the paper, where it stands in the code, what tests it, and what became of",
        "it: errata in its print (`joma errata`), and claims of experiments, decided from the",
        "records in `results/` (`joma check --all --out results`). Read off the code: `PAPER` of",
        "each module in `joma.theory`, and `paper` of each experiment. *Tested* means that neither",
        "is about it; if its function has a `form`, the print was corrected there too.",
        "",
        "| item | function | test | verdict |",
        "|---|---|---|---|",
    ]
    for item, function, test in sorted(rows, key=lambda row: _order(row[0])):
        cells = (item, function, f"`{test.relative_to(TESTS.parents[1])}`", _verdict(item, trials))
        assert all(cells) and test.is_file(), f"The paper map has an empty cell: {cells}"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _theory_rows() -> Iterator[tuple[str, str, Path]]:
    for module in ROOMS["theory"].names():
        home = importlib.import_module(f"joma.theory.{module}")
        for item, name in getattr(home, "PAPER", {}).items():
            function = f"{{py:obj}}`~joma.theory.{module}.{name}` in `theory/{module}.py`"
            yield item, function, TESTS / f"test_{module}.py"


def _figure_rows(trials: dict[str, list[str]]) -> Iterator[tuple[str, str, Path]]:
    """Figures and tables, which are experiments."""
    there = {item for item, _, _ in _theory_rows()}
    for item, names in trials.items():
        if item.startswith(("Figure", "Table")) and item not in there:
            tests = [TESTS.parent / "unit" / "experiments" / f"test_{name}.py" for name in names]
            contract = TESTS.parent / "contracts" / "test_experiments.py"
            test = next((path for path in tests if path.is_file()), contract)
            yield item, ", ".join(f"`experiments/{name}.py`" for name in names), test


def _items(name: str) -> set[str]:
    """Items that an experiment is about."""
    about = experiments.registry.load(name).paper
    found = {re.sub(r",? (on|with) .*", "", about.item)}
    found |= {f"Eqn. {n}" for n in about.equations}
    return found | {f"Theorem {n}" for n in about.theorems}


def _verdict(item: str, trials: dict[str, list[str]]) -> str:
    loaded = (errata.load(name) for name in errata.names())
    wrong = sorted(e.number for e in loaded if item in _places(e.where))
    parts = [f"errata: {', '.join(f'E{n}' for n in wrong)}"] if wrong else []
    for name in trials.get(item, ()):
        decided = Counter(row.verdict for row in _decided(name))
        parts.append(f"`{name}`: " + ", ".join(f"{n} {verdict}" for verdict, n in decided.items()))
    return "; ".join(parts) or "tested"


@cache
def _decided(name: str) -> list[Any]:
    return experiments._ledger.rows(results.RESULTS, names=[name])


def _places(where: str) -> set[str]:
    """`Theorem 3, Eqn. 70-74` names six items."""
    found = set()
    kinds = r"((?:Scan&Snap )?Theorem|Lemma|Eqn\.|Figure) (\d+(?:(?:, | and |-)\d+)*)"
    for kind, numbers in re.findall(kinds, where):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            found |= {f"{kind} {n}" for n in range(int(first), int(last or first) + 1)}
    return found | {where.partition(", ")[0]}


def ledger() -> str:
    """Every claim of the paper, decided from the records that are kept in `results/`."""
    table = experiments._ledger.markdown(experiments._ledger.rows(results.RESULTS))
    return f"""# Claims ledger

Every claim of the paper that we test, with its verdict, the numbers behind it and the control that
decides it, from the records kept in `results/`: `joma check --all --out results` prints the same.
[What holds, what does not](what-holds.md) tells the story.

{table}
"""


def _order(item: str) -> tuple[int, list[int], str]:
    kinds = ("Eqn.", "Theorem", "Lemma", "Figure", "Table", "Section")
    rank = next((i for i, kind in enumerate(kinds) if item.startswith(kind)), len(kinds))
    return rank, [int(n) for n in re.findall(r"\d+", item)], item


def cli() -> str:
    """The help of every verb, as the terminal prints it."""
    lines = ["# Command line", ""]
    for verb in ("", *sorted(command.callback.__name__ for command in app.registered_commands)):
        words = [word for word in ("joma", verb, "--help") if word]
        environment = os.environ | {"COLUMNS": "90", "TERM": "dumb", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        lines += [f"## `{' '.join(words[:-1])}`", "", "```text", done.stdout.strip(), "```", ""]
    return "\n".join(lines)


def api() -> dict[str, str]:
    """One page per room, every module in full."""
    pages = {}
    for room in API_ROOMS:
        package = importlib.import_module(f"joma.{room}")
        found = (m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)
        modules = sorted(name for name in found if not name.startswith("_"))
        lines = [f"# `joma.{room}`", "", (package.__doc__ or "").strip(), ""]
        for module in modules:
            lines += [
                f"## `{room}.{module}`",
                "",
                "```{eval-rst}",
                f".. automodule:: joma.{room}.{module}",
                "   :members:",
                "   :show-inheritance:",
                "```",
                "",
            ]
        pages[f"api-{room.strip('_')}.md"] = "\n".join(lines)
    return pages

"""Writes the reference pages that are read off the code, so that they cannot rot."""

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

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
    """Each item of the paper, the function that realises it, and the file that tests it."""
    items = []
    for module in ROOMS["theory"].names():
        home = importlib.import_module(f"joma.theory.{module}")
        for item, name in getattr(home, "PAPER", {}).items():
            items.append((item, module, name))
    lines = [
        "# Paper map",
        "",
        "Each item of the paper, where it stands in the code and what tests it. Read off the",
        "`PAPER` constant of each module in `joma.theory`.",
        "",
        "| item | function | test |",
        "|---|---|---|",
    ]
    for item, module, name in sorted(items, key=lambda i: _order(i[0])):
        test = TESTS / f"test_{module}.py"
        assert test.is_file(), f"{item} is mapped to {module}, which has no {test.name}"
        lines.append(
            f"| {item} | {{py:obj}}`~joma.theory.{module}.{name}` in `theory/{module}.py` "
            f"| `tests/numerics/{test.name}` |"
        )
    return "\n".join(lines) + "\n"


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

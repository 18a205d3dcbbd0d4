"""Code in the README and the docs runs, and prints what the page says it prints."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from standin.hub import Hub, environment
from unit.sweep.suites import revision_names, save, trajectory

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    if "file_format: mystnb" in page.read_text()[:200]:
        return []  # executed by the docs build
    return BLOCK.findall(page.read_text())


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_code_on_the_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for language, code, expected in blocks(page):
        printed = run_console(code) if language == "console" else run_python(code, names)
        if expected:
            assert printed.strip() == expected.strip()


def run_python(code: str, names: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<page>", "exec"), names)
    return printed.getvalue()


def run_console(code: str) -> str:
    """Lines that start with `$ ` are commands; the page may show their output below.

    A block that names the hub is run against a stand-in, which has a small suite of that name.
    """
    repository = re.search(r"hub:([\w.-]+/[\w.-]+)", code)
    if repository is None:
        return run_commands(code, dict(os.environ))
    with tempfile.TemporaryDirectory() as folder:
        states = dict(zip([*revision_names(8), "main"], trajectory(9, layers=2), strict=True))
        save(Path(folder) / repository[1], states)
        with Hub(folder) as hub:
            return run_commands(code, environment(hub))


def run_commands(code: str, variables: dict[str, str]) -> str:
    variables["COLUMNS"] = "100"
    printed = ""
    for command in re.findall(r"^\$ joma (.*)$", code, re.M):
        words = [sys.executable, "-m", "joma", *shlex.split(command)]
        result = subprocess.run(words, capture_output=True, text=True, check=True, env=variables)
        printed += result.stdout
    shown = "\n".join(line for line in code.splitlines() if not line.startswith("$ ")).strip()
    if shown:
        assert printed.strip() == shown
    return printed

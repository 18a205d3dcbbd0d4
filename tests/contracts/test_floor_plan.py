"""The import contracts hold, and each one breaks when it is violated."""

import shutil
import subprocess
import sys
import tomllib

import pytest

CONFIG = "pyproject.toml"
WITHOUT_TORCH = ("records", "theory", "analysis", "report")

# contract id -> (a file of the package, an import that must not stand there)
VIOLATIONS = {
    "floor-plan": [
        ("_core/errors.py", "import joma.records.schema"),
        ("records/schema.py", "import joma.theory"),
        ("theory/hblt.py", "import joma.cli.main"),
        ("bench/base.py", "import joma.cli.ls"),
    ],
    "no-torch": [
        ("theory/linear.py", "import torch"),
        ("records/schema.py", "from torch import Tensor"),
    ],
    "edge-files": [
        ("_core/errors.py", "import ray"),
        ("cli/ls.py", "import transformers"),
        ("records/arrow.py", "import pandas"),
    ],
}


def contracts(root) -> list[dict]:
    return tomllib.loads((root / CONFIG).read_text())["tool"]["importlinter"]["contracts"]


def lint(folder, *options: str) -> subprocess.CompletedProcess:
    # The copy under test must win over the installed package.
    code = (
        "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command"
    )
    code += "; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(root, tmp_path):
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "src", tmp_path / "src", ignore=ignore)
    shutil.copy(root / CONFIG, tmp_path)
    return tmp_path


def test_contracts_hold(copy):
    result = lint(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("contract", "file", "line"), [(c, *v) for c, vs in VIOLATIONS.items() for v in vs]
)
def test_a_contract_breaks_when_violated(copy, contract, file, line):
    path = copy / "src" / "joma" / file
    path.write_text(f"{path.read_text()}\n{line}\n")
    result = lint(copy, "--contract", contract)
    assert result.returncode == 1, result.stdout
    assert "BROKEN" in result.stdout


def test_every_contract_has_a_violation_that_breaks_it(root):
    assert {c["id"] for c in contracts(root)} == set(VIOLATIONS)


def test_rooms_right_of_the_waist_are_all_kept_from_torch(root):
    kept = next(c for c in contracts(root) if c["id"] == "no-torch")["source_modules"]
    built = {f"joma.{r}" for r in WITHOUT_TORCH if (root / "src" / "joma" / r).is_dir()}
    assert built <= set(kept)


def test_every_room_is_on_the_floor_plan(root):
    layers = next(c for c in contracts(root) if c["id"] == "floor-plan")["layers"]
    planned = {word.strip(" ()") for layer in layers for word in layer.split("|")}
    src = root / "src" / "joma"
    built = {f"joma.{p.name}" for p in src.iterdir() if (p / "__init__.py").is_file()}
    assert built <= planned

"""`import joma` is cheap, and heavy parts stay out until they are asked for."""

import importlib.util
import statistics
import subprocess
import sys
import time

import pytest

import joma

NAMESPACES = {"analysis", "data", "metrics", "models", "theory"}
HEAVY = ("torch", "pyarrow", "matplotlib", "scipy", "pandas", "transformers", "ray")


def loaded_by(code: str, watched: tuple[str, ...]) -> list[str]:
    code += f"\nimport sys; print(*[m for m in {watched} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.splitlines()[-1].split() if out.stdout.strip() else []


def test_the_front_door_pulls_nothing_heavy():
    names = ("Record", "JomaError", *NAMESPACES)
    code = "import joma; " + "; ".join(f"joma.{name}" for name in names)
    assert loaded_by(code, HEAVY) == []


@pytest.mark.parametrize("room", ["records.schema", "records.arrow", "theory.linear", "cli.main"])
def test_rooms_right_of_the_waist_work_without_torch(room):
    assert loaded_by(f"import joma.{room}", ("torch", "pandas", "matplotlib", "ray")) == []


@pytest.mark.parametrize("room", ["", "metrics", "experiments", "errata", "theory", "bench"])
def test_listing_names_imports_none_of_the_named(room):
    code = f"""
import sys
from joma.cli.main import app
app([w for w in ("ls", {room!r}) if w], standalone_mode=False)
"""
    assert loaded_by(code, ("torch", "scipy", "pyarrow")) == []


def test_import_costs_less_than_a_tenth_of_a_second():
    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    pairs = [(seconds("pass"), seconds("import joma")) for _ in range(7)]
    assert statistics.median(b - a for a, b in pairs) < 0.1


@pytest.mark.parametrize("name", joma.__all__)
def test_public_names_are_there(name):
    assert getattr(joma, name) is not None
    assert name in dir(joma)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'wach'"):
        _ = joma.wach


@pytest.mark.parametrize("name", sorted(set(joma.__all__) - NAMESPACES))
def test_a_public_name_never_equals_a_subpackage(name):
    assert importlib.util.find_spec(f"joma.{name}") is None

"""All 143 reference values, one test each, and nothing left over."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent.parent / "reference"
CASES = json.loads((HERE / "values.json").read_text())["cases"]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"reference_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = [load(p) for p in sorted(HERE.glob("cases_*.py"))]
ADAPTERS = {name: f for module in MODULES for name, f in module.ADAPTERS.items()}


def number(text):
    """Decimal strings to floats, lists to arrays; words and integers stay as they are."""
    if isinstance(text, dict):
        return {name: number(item) for name, item in text.items()}
    if isinstance(text, list):
        return np.array([number(item) for item in text])
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text


def adapter_name(case_id: str) -> str | None:
    fits = [p for p in ADAPTERS if case_id == p or case_id.startswith(p + ".")]
    return max(fits, key=len, default=None)


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_reference(case):
    name = adapter_name(case["id"])
    assert name, f"no adapter takes {case['id']}"
    got = ADAPTERS[name](**{k: number(v) for k, v in case["inputs"].items()})
    expected = {key: number(value) for key, value in case["expected"].items()}
    assert set(got) == set(expected), "an adapter answers every key of its case, and no other"
    for key, want in expected.items():
        np.testing.assert_allclose(got[key], want, rtol=case["rtol"], err_msg=f"{case['id']} {key}")


def test_reference_values_are_all_consumed():
    assert len(CASES) == 143
    assert [c["id"] for c in CASES if adapter_name(c["id"]) is None] == []


def test_reference_adapters_are_each_defined_once():
    names = [name for module in MODULES for name in module.ADAPTERS]
    used = {adapter_name(c["id"]) for c in CASES}
    assert sorted(names) == sorted(set(names))
    assert set(names) == used

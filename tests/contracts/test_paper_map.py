"""Each theorem, lemma and figure of the theory has one home, and its home has a test."""

import importlib

import pytest

from joma.cli.ls import ROOMS

MODULES = ROOMS["theory"].names()
MAPPED = {
    name: getattr(importlib.import_module(f"joma.theory.{name}"), "PAPER", None) for name in MODULES
}
ASKED = [f"Theorem {n}" for n in range(1, 6)] + [f"Lemma {n}" for n in range(1, 10)]
ASKED += ["Eqn. 1", "Eqn. 2", "Eqn. 3", "Eqn. 4", "Eqn. 6", "Eqn. 7", "Eqn. 8", "Figure 4"]
ASKED += ["Scan&Snap Theorem 3", "Scan&Snap Theorem 4", "CDAG Theorem 1"]


@pytest.mark.parametrize("module", [m for m, items in MAPPED.items() if items])
def test_mapped_names_exist(module):
    home = importlib.import_module(f"joma.theory.{module}")
    for item, name in MAPPED[module].items():
        assert getattr(home, name).__doc__, f"{item} -> {module}.{name} has no docstring"


@pytest.mark.parametrize("module", [m for m, items in MAPPED.items() if items])
def test_a_mapped_module_has_a_test_file(module, root):
    assert (root / "tests" / "numerics" / f"test_{module}.py").is_file()


@pytest.mark.parametrize("item", ASKED)
def test_the_item_has_a_home(item):
    assert [m for m, items in MAPPED.items() if items and item in items]

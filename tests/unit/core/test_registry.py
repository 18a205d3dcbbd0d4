import sys

import pytest

from joma._core.errors import JomaError
from joma._core.registry import Registry


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package with two plug-ins, one of which fails when imported."""
    package = tmp_path / "shelf"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").write_text("raise RuntimeError('a contract, not a plug-in')")
    (package / "_private.py").touch()
    (package / "fig4.py").write_text("THING = 4")
    (package / "broken.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("shelf", "THING")
    for name in [m for m in sys.modules if m.split(".")[0] == "shelf"]:
        del sys.modules[name]


def test_names_are_file_names_and_import_nothing(folder):
    assert folder.names() == ["broken", "fig4"]


def test_load_imports_one_plugin(folder):
    assert folder.load("fig4") == 4


def test_unknown_name_suggests_a_close_one(folder):
    with pytest.raises(LookupError, match=r"No thing named 'fig5'. Did you mean 'fig4'\?"):
        folder.load("fig5")


@pytest.mark.parametrize("package", ["joma.no_such_room", "joma.no_such_room.shelf"])
def test_a_room_that_is_not_built_is_empty(package):
    assert Registry(package, "THING").names() == []


def test_entry_points_of_other_packages_join(folder, tmp_path):
    info = tmp_path / "guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shelf]\nabroad = string:digits\n")
    assert folder.names() == ["abroad", "broken", "fig4"]
    assert folder.load("abroad") == "0123456789"


def test_two_plugins_of_one_name_are_refused(folder, tmp_path):
    info = tmp_path / "guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shelf]\nfig4 = string:digits\n")
    with pytest.raises(JomaError, match="2 plug-ins of shelf are named 'fig4'"):
        folder.load("fig4")

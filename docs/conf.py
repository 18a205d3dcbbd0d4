"""Sphinx configuration. Pages that could rot are generated from the code: see `generate.py`."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402  # lives beside this file

import joma  # noqa: E402

generate.write_all(HERE / "reference" / "generated")

project = "joma"
author = "The joma developers"
copyright = "2026, the joma developers"
version = release = joma.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "jupyter_execute", "reference/generated/fragments", "results"]
templates_path = []
html_theme = "furo"
html_title = f"joma {version}"
html_static_path = ["_static"]
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88

_MATH = re.compile(r"(\w?)(?<![\\$])(\${1,2})([^$]+)\2([\w'’]?)")


def _dollars_to_math(app, what, name, obj, options, lines):
    """Docstrings write mathematics between dollars, as the paper's readers expect."""
    lines[:] = _MATH.sub(_math, "\n".join(lines)).split("\n")


def _math(match):
    # reStructuredText wants a border around a role; an escaped space is one, and is not shown.
    before, _, formula, after = match.groups()
    before = before and f"{before}\\ "
    after = after and f"\\ {after}"
    return f"{before}:math:`{' '.join(formula.split())}`{after}"


def _heading_levels(app, pagename, templatename, context, doctree):
    """Sphinx makes headings of captions and leaves out their level, which screen readers need."""
    tree, role = context.get("furo_navigation_tree", ""), 'role="heading"'
    context["furo_navigation_tree"] = tree.replace(role, f'{role} aria-level="2"')


def setup(app):
    app.connect("autodoc-process-docstring", _dollars_to_math)
    app.connect("html-page-context", _heading_levels, priority=900)  # after the theme's own

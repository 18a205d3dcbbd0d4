"""The front page of the docs in a real browser, after `sphinx-build docs docs/_build/html`."""

import pytest

from browser.drive import CHROMIUM, Browser, axe_core

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")


@pytest.fixture(scope="module")
def front(root):
    path = root / "docs/_build/html/index.html"
    if not path.exists():
        pytest.skip("needs the built docs: sphinx-build docs docs/_build/html")
    return path


@pytest.mark.parametrize("width", [1400, 400])
def test_the_front_page_fits_and_says_no_error(front, width):
    with Browser() as browser:
        seen = browser.open(front, width=width)
    assert seen.overflow <= 0
    assert [line for line in seen.console if line.startswith("error")] == []


def test_axe_finds_nothing_serious_on_the_front_page(front):
    axe = axe_core()
    with Browser() as browser:
        for dark in (False, True):
            assert browser.open(front, height=3000, dark=dark, axe=axe).serious == []

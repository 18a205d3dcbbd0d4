"""The report in a real browser: nothing foreign runs, nothing is cut off, nothing is fetched.

Chromium comes with the machine (`apt-get install chromium`). axe-core is not ours to ship: set
JOMA_AXE to its axe.min.js (`npm install axe-core`), or leave that test out.
"""

import statistics
from pathlib import Path

import pytest

pytest.importorskip("plotly")
from browser.drive import CHROMIUM, Browser, axe_core
from browser.material import hostile, run, sweep
from joma.records.store import Store
from joma.report.material import material
from joma.report.page import LARGEST, page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")

OPENS = 3000  # milliseconds


@pytest.fixture(scope="module")
def browser():
    with Browser() as made:
        yield made


def written(store: Path, to: Path) -> Path:
    to.write_text(page([material(store)], theory=True), encoding="utf-8")
    return to


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    Store(folder / "records").append(run("dies"))
    Store(folder / "records").append(run("lives", dies=False))
    return written(folder / "records", folder / "page.html")


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_drawn_without_errors_or_overflow(browser, plain, width, dark):
    seen = browser.open(
        plain, width=width, dark=dark, ask="getComputedStyle(document.body).backgroundColor"
    )
    assert seen.console == []
    assert seen.requests == []
    assert seen.overflow <= 0
    assert seen.value == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert browser.evaluate("document.querySelectorAll('.plot').length") > 3


def test_figures_are_drawn_when_they_come_into_view(browser, plain):
    browser.open(plain, height=20_000)
    left = (
        "[...document.querySelectorAll('details[open] > figure > .plot, section > figure > .plot')]"
    )
    assert browser.evaluate(f"{left}.filter(p => !p.querySelector('.main-svg')).length") == 0


def test_the_colours_change_at_a_button_and_by_keyboard(browser, plain):
    browser.open(plain)
    browser.evaluate("document.getElementById('theme').focus()")
    for kind in ("rawKeyDown", "char", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    assert browser.evaluate("document.activeElement.textContent") == "Light colours"


def test_nothing_offers_to_send_the_figures_away(browser, plain):
    seen = browser.open(
        plain,
        height=3000,
        ask="[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title || '').join()",
    )
    assert "PNG" in seen.value
    assert "loud" not in seen.value


def test_the_table_is_handed_out_as_it_is(browser, plain):
    seen = browser.open(plain, ask="document.getElementById('csv').textContent")
    assert seen.value.startswith('"run","stage","step"')
    assert seen.value.count("\n") == material(plain.parent / "records").table.num_rows + 1


def test_it_prints(browser, plain, tmp_path):
    browser.open(plain)
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000


def test_markup_in_names_comes_out_as_text(browser, tmp_path):
    hostile(tmp_path / "records")
    path = written(tmp_path / "records", tmp_path / "page.html")
    browser.open(path, height=20_000, settle=2)
    everything = "document.querySelectorAll('details').forEach(d => d.open = true)"
    browser.evaluate(everything)
    browser._listen(2)
    seen = browser.seen
    assert browser.evaluate("window.hacked === undefined")
    assert (
        browser.evaluate("document.querySelectorAll('img, iframe, [onerror], [onload]').length")
        == 0
    )
    assert browser.evaluate("document.querySelectorAll('a[href^=javascript], svg a').length") == 0
    assert browser.evaluate("document.querySelectorAll('script').length") == 3
    assert seen.console == []
    assert seen.requests == []
    assert seen.dialogs == 0
    shown = browser.evaluate("document.body.innerText")
    for name in ("<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>"):
        assert name in shown


def test_axe_finds_nothing_serious(browser, plain):
    axe = axe_core()
    for dark in (False, True):
        assert browser.open(plain, height=6000, dark=dark, axe=axe).serious == []


@pytest.mark.slow
def test_a_million_rows_open_in_three_seconds(browser, tmp_path):
    found = material(sweep(tmp_path / "sweep", 1_000_000).path)
    assert found.table.num_rows >= 1_000_000
    path = written(tmp_path / "sweep", tmp_path / "page.html")
    assert path.stat().st_size < LARGEST
    seen = []
    for _ in range(3):
        with Browser() as fresh:  # with nothing in its cache
            seen.append(fresh.open(path))
    print(f"{path.stat().st_size:,} bytes, ms: {[(round(s.opened), round(s.busy)) for s in seen]}")
    assert statistics.median(s.opened for s in seen) < OPENS

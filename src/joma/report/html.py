"""HTML in which text is text: what is not made here as markup is escaped."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, Final

_VOID: Final = {"meta", "link"}


class Html(str):
    """Markup that may go into a page as it is. A plain string may not."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """An element. `class_` is `class`, `aria_label` is `aria-label`; `None` leaves one out.

    Example:
        >>> tag("p", "1 < 2", class_="note")
        '<p class="note">1 &lt; 2</p>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{html.escape(str(value))}"')
    inside = "".join(_escaped(child) for child in children)
    return Html(f"<{' '.join(words)}>" + ("" if name in _VOID else f"{inside}</{name}>"))


def joined(parts: Iterable[str]) -> Html:
    """Several elements as one."""
    return Html("".join(_escaped(part) for part in parts))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table that scrolls sideways by itself; the first cell of each row is its heading."""
    cells = (
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", c) for c in row[1:])) for row in rows
    )
    inner = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(tag("th", word, scope="col") for word in head))),
        tag("tbody", *cells),
    )
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def data(value: Any, name: str) -> Html:
    """A value for the page's own script; nothing in it can end the element or run."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{name}">{text}</script>')


def document(title: str, body: str, scripts: Sequence[str]) -> str:
    """A whole page that loads nothing from anywhere, and runs these scripts and no others."""
    plain = [script.replace("\r\n", "\n").replace("\r", "\n") for script in scripts]
    assert not any("</script" in script.lower() for script in plain)
    style = Html(asset("page.css"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(plain)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
    )
    run = joined(tag("script", Html(script)) for script in plain)
    page = tag("html", head, tag("body", Html(body), run), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def asset(name: str) -> str:
    """A file that comes with this package."""
    return files("joma.report").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    # Plotly sets styles from scripts, and draws heat maps as images of its own making.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _escaped(child: str) -> str:
    # A lone surrogate, legal in a file name, cannot be written as UTF-8.
    safe = child if isinstance(child, Html) else html.escape(child)
    return safe.encode("utf-8", "replace").decode()

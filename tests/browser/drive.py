"""A page in a real, headless Chromium, over the DevTools pipe: what it drew, said and asked for."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
PAINTED = (
    "new Promise(r => requestAnimationFrame(() => requestAnimationFrame("
    "() => r(performance.now()))))"
)
AXE = (
    "axe.run().then(r => r.violations.map(v => ({id: v.id, impact: v.impact, "
    "nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 200))})))"
)


def axe_core() -> Path:
    """Where axe-core is; it is not ours to ship."""
    found = os.environ.get("JOMA_AXE")
    if not found:
        pytest.skip("needs axe-core: npm install axe-core, and JOMA_AXE=…/axe-core/axe.min.js")
    return Path(found)


@dataclass
class Seen:
    """What happened while a page was open."""

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Addresses outside the page's own file that it asked for."""
    dialogs: int = 0
    opened: float = float("nan")
    """Milliseconds from the start of the navigation until figures were on the screen."""
    busy: float = float("nan")
    """Milliseconds of processor time of the page, from its start until then."""
    drawn: int = 0
    """Figures on the screen then."""
    overflow: int = 0
    """Pixels by which the page is wider than the window."""
    value: Any = None
    violations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def serious(self) -> list[dict[str, Any]]:
        """Violations of accessibility that keep people out."""
        return [v for v in self.violations if v["impact"] in ("serious", "critical")]


class Browser:
    """One Chromium with one tab. Use it as a context."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="joma-browser-")
        ours, theirs = os.pipe(), os.pipe()  # to the browser, from the browser
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]

        def wired() -> None:
            os.dup2(ours[0], 3)
            os.dup2(theirs[1], 4)

        # The pipes must not be 3 and 4 themselves, or one copy would overwrite the other.
        ours = tuple(os.dup(fd) if fd < 5 else fd for fd in ours)
        theirs = tuple(os.dup(fd) if fd < 5 else fd for fd in theirs)
        self._process = subprocess.Popen(
            command,
            preexec_fn=wired,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._out, self._in = ours[1], theirs[0]
        os.close(ours[0])
        os.close(theirs[1])
        self._rest, self._last, self._session = b"", 0, None
        self.seen, self._loaded = Seen(), False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        wanted = self._last
        while True:
            answer = self._read(60)
            if answer.get("id") == wanted:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript in the page."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(
        self,
        page: Path,
        *,
        width: int = 1400,
        height: int = 1000,
        dark: bool = False,
        axe: Path | None = None,
        shot: Path | None = None,
        settle: float = 1.0,
        ask: str | None = None,
    ) -> Seen:
        """Open a file, wait until it is drawn, and say what happened."""
        self.seen, self._loaded = Seen(), False
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.setBypassCSP", enabled=axe is not None)
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._read(60)
        seen = self.seen
        seen.opened = self.evaluate(PAINTED)
        counters = {m["name"]: m["value"] for m in self.call("Performance.getMetrics")["metrics"]}
        seen.busy = 1000 * counters["ProcessTime"]
        seen.drawn = self.evaluate("document.querySelectorAll('.plot .main-svg').length")
        self._listen(settle)
        seen.overflow = self.evaluate("document.documentElement.scrollWidth - innerWidth")
        seen.value = self.evaluate(ask) if ask else None
        if axe is not None:
            self.evaluate(axe.read_text(encoding="utf-8") + ";0")
            seen.violations = self.evaluate(AXE)
        if shot is not None:
            shot.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
        return seen

    def pdf(self, path: Path) -> None:
        """Print the open page."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))

    def _listen(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if b"\0" in self._rest or select.select([self._in], [], [], left)[0]:
                self._read(left + 1)

    def _read(self, patience: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready = select.select([self._in], [], [], patience)[0]
            assert ready, f"The browser said nothing for {patience:.0f} s."
            more = os.read(self._in, 1 << 20)
            assert more, "The browser is gone."
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        seen = self.seen
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.consoleAPICalled":
            words = [str(a.get("value", a.get("description"))) for a in params["args"]]
            seen.console.append(f"{params['type']}: {' '.join(words)}")
        elif method == "Runtime.exceptionThrown":
            seen.console.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            seen.console.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:", "about:")):
                seen.requests.append(address)
        elif method == "Page.javascriptDialogOpening":
            seen.dialogs += 1
            self._last += 1
            message = {
                "id": self._last,
                "method": "Page.handleJavaScriptDialog",
                "params": {"accept": False},
                "sessionId": self._session,
            }
            os.write(self._out, json.dumps(message).encode() + b"\0")

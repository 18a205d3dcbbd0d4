"""A stand-in for the hub: a small HTTP server for tests, which the real clients take for the hub.

It serves `FOLDER/OWNER/REPOSITORY/REVISION/FILE` at the addresses of the hub: lists of
repositories, refs, trees, model infos, and files by range with tags, large ones through a redirect
to another host name. Point `HF_ENDPOINT` at it and set `HF_HUB_DISABLE_XET=1`. On request a share
of the answers fails, each in one of five ways; which ones depends on the seed, the address and how
often it was asked, so that the order of requests does not matter.

    python -m standin.hub FOLDER --port 8000 --faults 0.2

Tags are made of a file's size and time, not of its content, so that large files start at once.
"""

import argparse
import hashlib
import json
import os
import random
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pt", ".pth")
KINDS = ("429", "500", "reset", "short", "length")


@dataclass(frozen=True)
class Faults:
    """Which share of the answers fails, and in which ways."""

    rate: float = 0.0
    seed: int = 0
    kinds: tuple[str, ...] = KINDS

    def draw(self, address: str, times: int) -> str | None:
        rng = random.Random(f"{self.seed} {address} {times}")
        return rng.choice(self.kinds) if rng.random() < self.rate else None


@dataclass
class Log:
    """What was asked and sent."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: Counter = field(default_factory=Counter)
    faults: Counter = field(default_factory=Counter)
    requests: int = 0
    sent: int = 0
    """Bytes of bodies, of whole answers and of those that were cut."""
    tokens_elsewhere: int = 0
    """Requests to the redirected address that carried a token: there should be none."""


class Hub:
    """The server, while its `with` block lasts."""

    def __init__(self, folder, *, port: int = 0, faults: Faults | None = None, page: int = 1000):
        self.folder = Path(folder)
        self.faults = faults or Faults()
        self.page = page
        self.log = Log()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.hub = self
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.elsewhere = f"http://localhost:{self.port}/cdn"
        self.signature = "1"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self):
        self._server.serve_forever()

    def forget(self):
        """Start counting from zero."""
        self.log = Log()

    def repositories(self) -> list[str]:
        return sorted(f"{p.parent.name}/{p.name}" for p in self.folder.glob("*/*") if p.is_dir())

    def revisions(self, repository: str) -> list[str]:
        return sorted(p.name for p in (self.folder / repository).iterdir() if p.is_dir())


def commit(repository: str, revision: str) -> str:
    """A name for the state of a revision. Stays when files are changed, as no commit would."""
    return hashlib.sha1(f"{repository}@{revision}".encode()).hexdigest()


def tag(path: Path) -> str:
    status = path.stat()
    text = f"{path.name} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[: 64 if path.suffix in LARGE else 40]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _NotThereError(Exception):
    """Carries the hub's code for what is not there."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        log = self.hub.log
        self.fault = None
        if self.path == "/standin/log":  # asking for the counts does not change them
            found = {"requests": log.requests, "sent": log.sent, "faults": log.faults}
            return self.json(found, counted=False)
        address = f"{self.command} {self.path} {self.headers.get('Range')}"
        with log.lock:
            log.requests += 1
            times = log.asked[address]
            log.asked[address] += 1
        self.fault = self.hub.faults.draw(address, times)
        if self.fault:
            with log.lock:
                log.faults[self.fault] += 1
        if self.fault == "429":
            return self.send(429, b"slow down", {"Retry-After": "0"})
        if self.fault == "500":
            return self.send(500, b"not today")
        if self.fault == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            return self.connection.close()
        try:
            self.route()
        except _NotThereError as error:
            self.send(404, b"not there", {"X-Error-Code": str(error), "X-Error-Message": "no"})

    def route(self):
        url = urlsplit(self.path)
        words = [unquote(word) for word in url.path.strip("/").split("/")]
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match words:
            case ["api", "models"]:
                self.models(query)
            case ["api", "models", owner, name, "refs"]:
                self.refs(self.known(f"{owner}/{name}"))
            case ["api", "models", owner, name, "tree", revision, *folder]:
                self.tree(self.known(f"{owner}/{name}"), revision, query, folder)
            case ["api", "models", owner, name, "revision", revision]:
                self.info(self.known(f"{owner}/{name}"), revision)
            case ["api", "models", owner, name]:
                self.info(self.known(f"{owner}/{name}"), "main")
            case [owner, name, "resolve", revision, *file]:
                self.resolve(self.known(f"{owner}/{name}"), revision, "/".join(file))
            case ["cdn", owner, name, revision, file]:
                self.cdn(f"{owner}/{name}", revision, file, query)
            case _:
                raise _NotThereError("RepoNotFound")

    def known(self, repository: str) -> str:
        if repository not in self.hub.repositories():
            raise _NotThereError("RepoNotFound")
        return repository

    def of(self, repository: str, revision: str) -> str:
        """The revision that a name or a commit means."""
        for name in self.hub.revisions(repository):
            if revision in (name, commit(repository, name)):
                return name
        raise _NotThereError("RevisionNotFound")

    def files(self, repository: str, revision: str) -> list[Path]:
        folder = self.hub.folder / repository / self.of(repository, revision)
        return sorted(p for p in folder.iterdir() if p.is_file())

    def models(self, query):
        found = [
            {"id": name, "modelId": name, "tags": [], "private": False}
            for name in self.hub.repositories()
            if name.startswith(query.get("author", "")) and query.get("search", "") in name
        ]
        self.listed(found, query)

    def refs(self, repository):
        def listed(kind, names):
            return [
                {"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": commit(repository, n)}
                for n in names
            ]

        names = self.hub.revisions(repository)
        tags = [n for n in names if n.startswith("global_step")]  # as BLOOM has them
        branches = listed("heads", [n for n in names if n not in tags])
        self.json({"branches": branches, "tags": listed("tags", tags), "converts": []})

    def tree(self, repository, revision, query, folder):
        if folder:
            raise _NotThereError("EntryNotFound")
        entries = []
        for path in self.files(repository, revision):
            size, name = path.stat().st_size, tag(path)
            entry = {"type": "file", "path": path.name, "size": size, "oid": name[:40]}
            if path.suffix in LARGE:
                entry["lfs"] = {"oid": name, "size": size, "pointerSize": 134}
            entries.append(entry)
        self.listed(entries, query)

    def listed(self, found, query):
        """One page of a list, and where the next one is."""
        start = int(query.get("cursor", 0))
        stop = start + self.hub.page
        more = {}
        if stop < len(found):
            path = urlsplit(self.path).path
            rest = "&".join(f"{k}={quote(v)}" for k, v in query.items() if k != "cursor")
            more["Link"] = f'<{self.hub.url}{path}?{rest}&cursor={stop}>; rel="next"'
        self.json(found[start:stop], more)

    def info(self, repository, revision):
        name = self.of(repository, revision)
        files = [{"rfilename": p.name} for p in self.files(repository, revision)]
        sha = commit(repository, name)
        about = {"id": repository, "modelId": repository, "sha": sha, "siblings": files}
        self.json({**about, "tags": [], "private": False, "gated": False, "disabled": False})

    def resolve(self, repository, revision, file):
        name = self.of(repository, revision)
        there = {p.name: p for p in self.files(repository, revision)}
        sha = commit(repository, name)
        if file not in there:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
        path = there[file]
        about = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if path.suffix not in LARGE:
            return self.file(path, {**about, "ETag": f'"{tag(path)}"'})
        place = quote(f"{repository}/{name}/{file}")
        about["Location"] = f"{self.hub.elsewhere}/{place}?signature={self.hub.signature}"
        about["X-Linked-ETag"] = f'"{tag(path)}"'
        about["X-Linked-Size"] = str(path.stat().st_size)
        return self.send(302, b"", about)

    def cdn(self, repository, revision, file, query):
        if "Authorization" in self.headers:
            with self.hub.log.lock:
                self.hub.log.tokens_elsewhere += 1
        if query.get("signature") != self.hub.signature:
            return self.send(403, b"expired")
        path = next((p for p in self.files(repository, revision) if p.name == file), None)
        if path is None:
            raise _NotThereError("EntryNotFound")
        return self.file(path, {"ETag": f'"{tag(path)[:32]}"', "Accept-Ranges": "bytes"})

    def file(self, path, headers):
        size = path.stat().st_size
        start, stop, status = 0, size, 200
        asked = self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else size - int(last)
            stop = min(size, int(last) + 1) if first and last else size
            if not 0 <= start < stop:
                return self.send(416, b"", {"Content-Range": f"bytes */{size}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return self.send(status, _Part(path, start, stop - start), headers)

    def json(self, found, headers=None, *, counted=True):
        body = json.dumps(found).encode()
        about = {"Content-Type": "application/json", **(headers or {})}
        self.send(200, body, about, counted=counted)

    def send(self, status, body, headers=None, *, counted=True):
        length = len(body)
        if self.fault == "length" and length > 8:
            length -= 7
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fault == "short" and length > 1:
            length //= 2
            self.close_connection = True
        sent = 0
        try:
            for chunk in _chunks(body, length):
                self.wfile.write(chunk)
                sent += len(chunk)
        finally:
            with self.hub.log.lock:
                self.hub.log.sent += sent if counted else 0


@dataclass(frozen=True)
class _Part:
    path: Path
    start: int
    length: int

    def __len__(self):
        return self.length


def _chunks(body, length: int) -> Iterator[bytes]:
    if isinstance(body, bytes):
        yield body[:length]
        return
    with open(body.path, "rb") as file:
        file.seek(body.start)
        while length > 0:
            chunk = file.read(min(length, 1 << 20))
            if not chunk:
                return
            length -= len(chunk)
            yield chunk


def environment(hub: Hub) -> dict[str, str]:
    """Variables under which a new process takes the stand-in for the hub."""
    return {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": "hf_standin",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="holds OWNER/REPOSITORY/REVISION/FILE")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--faults", type=float, default=0.0, help="share of answers that fail")
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    hub = Hub(words.folder, port=words.port, faults=Faults(words.faults, words.seed))
    print(f"HF_ENDPOINT={hub.url}", flush=True)
    hub.serve_forever()


if __name__ == "__main__":
    main()

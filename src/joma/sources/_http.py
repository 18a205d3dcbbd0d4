"""Byte ranges over HTTP, each answer checked: status, range, length, tag.

Imported by `hub.py` only, within its message about the missing extra.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar, final
from urllib.parse import quote, urljoin

from huggingface_hub import get_session
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from joma.sources._bytes import AbstractFiles
from joma.sources._errors import ChangedFileError, HostileFileError, SourceError
from joma.sources._index import FileInfo
from joma.sources._json import anything
from joma.sources._retry import NobodyError, Retry, TransientError, retried, retry_after
from joma.sources._traffic import Traffic

T = TypeVar("T")

_SECONDS: Final = 30.0  # without a byte
_LARGEST_ANSWER: Final = 32_000_000
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_PASSING: Final = {408, 425, 429, 500, 502, 503, 504}
_EXPIRED: Final = {400, 401, 403, 404, 410}


@final
class Client:
    """Requests to one hub, tried again when that may help, and counted."""

    def __init__(self, endpoint: str, retry: Retry, traffic: Traffic):
        """`endpoint` is the hub's address, without a slash at its end."""
        self.endpoint = endpoint
        self.retry = retry
        self.traffic = traffic

    def get(
        self, url: str, receive: Callable[[Any], T], headers: Mapping[str, str] | None = None
    ) -> T:
        """What `receive` makes of the answer. It may raise `TransientError` to be asked again."""
        session = get_session()
        # The token is for the hub, not for the store that a redirect led to.
        own = url.startswith(f"{self.endpoint}/")
        about = {**build_hf_headers(token=None if own else False), "Accept-Encoding": "identity"}
        library = sys.modules[type(session).__module__.partition(".")[0]]

        def attempt() -> T:
            try:
                with session.stream(
                    "GET",
                    url,
                    headers={**about, **(headers or {})},
                    timeout=_SECONDS,
                    follow_redirects=True,
                ) as response:
                    self.traffic.add(requests=1 + len(response.history))
                    _pass(response)
                    return receive(response)
            except library.ConnectError as error:
                raise NobodyError(f"{type(error).__name__} ({error})") from error
            except library.HTTPError as error:
                raise TransientError(f"{type(error).__name__} ({error})") from error

        return retried(attempt, url, self.retry, self.traffic)

    def json(self, path: str) -> dict[str, Any]:
        """The JSON object at a path of the hub."""
        found, _ = self.get(self.endpoint + path, self._answer)
        if not isinstance(found, dict):
            raise HostileFileError(f"The hub's answer to {path} is not an object.")
        return found

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """The JSON objects of a list that comes in pages."""
        url = self.endpoint + path
        while url:
            found, following = self.get(url, self._answer)
            if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
                raise HostileFileError(f"The hub's answer to {path} is not a list of objects.")
            yield from found
            # The token goes along: only to the hub itself.
            url = urljoin(url, following) if following else ""
            if url and not url.startswith(self.endpoint + "/"):
                raise HostileFileError(
                    f"The hub's answer to {path} continues elsewhere: {url[:80]!r}."
                )

    def _answer(self, response: Any) -> tuple[Any, str]:
        """The JSON of an answer, and where the next page is."""
        if response.status_code != 200:
            raise SourceError(_refused(response.status_code, str(response.url)))
        body = b""
        for chunk in response.iter_raw():
            body += chunk
            self.traffic.add(size=len(chunk))
            if len(body) > _LARGEST_ANSWER:
                raise HostileFileError(
                    f"{response.url}: the answer exceeds {_LARGEST_ANSWER} bytes."
                )
        try:
            found = anything(body, str(response.url))
        except HostileFileError as error:  # it may have been cut on its way
            raise TransientError(str(error), final=HostileFileError) from error
        return found, str(response.links.get("next", {}).get("url", ""))


@final
class HubFiles(AbstractFiles):
    """The files at one commit of one repository."""

    threads = 8
    piece = 32 << 20

    def __init__(self, client: Client, repository: str, commit: str):
        """Nothing is asked until something is read."""
        self.client = client
        self.repository = repository
        self.commit = commit
        self._listing: dict[str, FileInfo] | None = None
        self._places: dict[str, tuple[str, str | None]] = {}
        self._lock = threading.Lock()

    def listing(self) -> Mapping[str, FileInfo]:
        if self._listing is None:
            path = f"/api/models/{quote(self.repository)}/tree/{self.commit}?recursive=False"
            entries = [e for e in self.client.pages(path) if e.get("type") == "file"]
            self._listing = {info.name: info for info in map(_file, entries)}
        return self._listing

    def fetch(self, file: FileInfo, start: int, into: memoryview) -> None:
        wanted = {"Range": f"bytes={start}-{start + len(into) - 1}"}
        path = f"{quote(self.repository)}/resolve/{self.commit}/{quote(file.name)}"

        def receive(response: Any) -> None:
            if response.status_code in _EXPIRED and place is not None:
                # An address of the store behind the hub is good for minutes: ask the hub again.
                raise _ExpiredError
            _check(response, file, start, len(into))
            self._check_tag(response, file)
            self._fill(response, into)

        with self._lock:
            place = self._places.get(file.name)
        if place is not None:
            try:
                return self.client.get(place[0], receive, wanted)
            except _ExpiredError:
                with self._lock:
                    self._places.pop(file.name, None)
                place = None
        return self.client.get(f"{self.client.endpoint}/{path}", receive, wanted)

    def _check_tag(self, response: Any, file: FileInfo) -> None:
        """Compare what the answer says of the file's content with what the listing said."""
        hops = [r.headers for r in (*response.history, response)]
        said = next((h["x-linked-etag"] for h in hops if "x-linked-etag" in h), None)
        tag = response.headers.get("etag")
        if (
            not response.history
            and said is None
            and str(response.url).startswith(f"{self.client.endpoint}/")
        ):
            said = tag
        if said is not None and file.etag is not None and _bare(said) != file.etag:
            raise _changed(file, f"tag {_bare(said)[:80]!r}, was {file.etag!r}")
        if response.history or file.name in self._places:
            url = str(response.url)
            with self._lock:
                place, known = self._places.setdefault(file.name, (url, tag))
            if known != tag and place.partition("?")[0] == url.partition("?")[0]:
                raise _changed(file, f"tag {tag!r}, was {known!r}")

    def _fill(self, response: Any, into: memoryview) -> None:
        done = 0
        for chunk in response.iter_raw():
            self.client.traffic.add(size=len(chunk))
            if done + len(chunk) > len(into):
                raise TransientError(f"more than the {len(into)} bytes asked for")
            into[done : done + len(chunk)] = chunk
            done += len(chunk)
        if done < len(into):
            raise TransientError(f"the answer ended after {done} of {len(into)} bytes")


class _ExpiredError(Exception):
    pass


def _pass(response: Any) -> None:
    status = response.status_code
    if status in _PASSING:
        raise TransientError(f"the hub answered {status}", retry_after(response.headers))


def _check(response: Any, file: FileInfo, start: int, size: int) -> None:
    """Whether an answer is the range that was asked for, by its headers."""
    status = response.status_code
    whole = status == 200 and start == 0 and size == file.size
    if status not in (200, 206) or (status == 200 and not whole):
        raise SourceError(_refused(status, str(response.url)))
    length = response.headers.get("content-length")
    if length is not None and length != str(size):
        raise TransientError(f"an answer of {length[:20]} bytes for {size}")
    if whole:
        return
    match = _RANGE.fullmatch(response.headers.get("content-range", ""))
    said = tuple(map(int, match.groups())) if match else None
    if said is None or said[:2] != (start, start + size - 1):
        raise TransientError(f"range {said} for bytes {start} to {start + size - 1}")
    if said[2] != file.size:
        text = f"{file.name} has {said[2]} bytes, was {file.size}"
        raise TransientError(text, final=ChangedFileError)


def _refused(status: int, url: str) -> str:
    url = url.partition("?")[0]
    if status in (401, 403):
        return f"{url}: access refused ({status}). Log in with `hf auth login` or set HF_TOKEN."
    if status == 404:
        return f"{url}: not there (404). Check the name; private repositories need `hf auth login`."
    if status == 200:
        return f"{url}: the server sends whole files only; byte ranges are needed."
    return f"{url}: the hub answered {status}."


def _changed(file: FileInfo, how: str) -> ChangedFileError:
    return ChangedFileError(
        f"{file.name} changed on the hub while it was being read ({how}). Its parts do not belong "
        "together; list the revisions again and start this one over."
    )


def _bare(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')


def _file(entry: Mapping[str, Any]) -> FileInfo:
    name, size, tag = entry.get("path"), entry.get("size"), entry.get("oid")
    large = entry.get("lfs")
    if isinstance(large, dict):
        tag, size = large.get("oid"), large.get("size")
    if not isinstance(name, str) or type(size) is not int or size < 0:
        raise HostileFileError("The hub's list of files has an entry without a path or a size.")
    return FileInfo(name, size, tag if isinstance(tag, str) else None)

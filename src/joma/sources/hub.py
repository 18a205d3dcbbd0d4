"""Edge file for joma[hub]: checkpoints on the Hugging Face hub, a revision per branch or tag.

Requests go through huggingface_hub's own session, with its proxies, token and `HF_ENDPOINT`, but
bytes are asked for by range, and a revision is pinned to the commit it names when it is listed.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, final
from urllib.parse import quote, urlencode

from torch import Tensor

from joma._core.extras import extra
from joma._core.registry import closest
from joma.sources import _checkpoint
from joma.sources._errors import HostileFileError, SourceError
from joma.sources._index import Index
from joma.sources._names import Revision, danger, parse, select
from joma.sources._recent import Recent
from joma.sources._retry import Retry
from joma.sources._traffic import Traffic
from joma.sources.base import AbstractSource

with extra("hub", packages=("huggingface_hub",), purpose="Reading from the hub"):
    from huggingface_hub import constants

    from joma.sources._http import Client, HubFiles

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_KNOCKS = 4  # two to four seconds in all


@final
class HubSource(AbstractSource):
    """The revisions of one repository on the hub."""

    def __init__(
        self,
        repository: str,
        which: str | None = None,
        *,
        endpoint: str | None = None,
        retry: Retry | None = None,
    ):
        """`endpoint` is the hub's address, else `HF_ENDPOINT`; it travels with the source."""
        if not _REPOSITORY.fullmatch(repository) or ".." in repository:
            raise SourceError(
                f"{repository[:80]!r} is not a repository. Expected OWNER/NAME of letters, digits "
                "and ._- , then @ and which revisions, as in EleutherAI/pythia-160m@step*."
            )
        self.repository = repository
        self.which = which
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self.retry = retry or Retry()
        self._commits: dict[str, str] | None = None
        self._traffic = Traffic()
        self._recent: Recent[Index] = Recent()
        self._files: Recent[HubFiles] = Recent()

    @classmethod
    def opened(cls, where: str) -> "HubSource":
        repository, at, which = where.partition("@")
        return cls(repository, which if at else None)

    @classmethod
    def expanded(cls, pattern: str) -> tuple[str, ...]:
        owner, slash, name = pattern.partition("/")
        if not slash or set(owner) & set("*?["):
            raise SourceError(f"{pattern!r} must name one owner: google/multiberts-seed_*.")
        literal = max(re.split(r"[*?]|\[.*?\]", name), key=len)
        query = urlencode({"author": owner, "search": literal, "limit": 1000})
        client = Client(constants.ENDPOINT, Retry(), Traffic())
        found = [str(m.get("id")) for m in client.pages(f"/api/models?{query}")]
        return tuple(sorted(fnmatch.filter(found, pattern)))

    @property
    def spec(self) -> str:
        return f"hub:{self.repository}" + (f"@{self.which}" if self.which else "")

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def revisions(self) -> tuple[Revision, ...]:
        run = self.repository
        found = (parse(name, run, commit) for name, commit in self._refs().items())
        return select(found, self.which)

    def index(self, revision: str) -> Index:
        files = self._of(revision)
        return self._recent.get(revision, lambda: _checkpoint.index(files, revision, files.commit))

    def read(
        self, revision: str, names: Iterable[str], *, device: str | None = None
    ) -> Mapping[str, Tensor]:
        return _checkpoint.read(self._of(revision), self.index(revision), names, device)

    def config(self, revision: str) -> dict[str, Any]:
        return _checkpoint.config(self._of(revision))

    def pretrained(self, revision: str) -> dict[str, str]:
        return {
            "pretrained_model_name_or_path": self.repository,
            "revision": self._of(revision).commit,
        }

    def _of(self, revision: str) -> HubFiles:
        def made() -> HubFiles:
            problem = danger(revision)
            if problem:
                raise SourceError(problem)
            refs = self._refs()
            if revision not in refs:
                raise SourceError(
                    f"{self.repository} has no revision {revision!r}."
                    f"{closest(revision, sorted(refs)[:12])}"
                )
            return HubFiles(self._client(), self.repository, refs[revision])

        return self._files.get(revision, made)

    def _client(self, retry: Retry | None = None) -> Client:
        return Client(self.endpoint, retry or self.retry, self._traffic)

    def _refs(self) -> dict[str, str]:
        """Commit of each branch and tag. Kept, so that all workers see the same commits."""
        if self._commits is None:
            path = f"/api/models/{quote(self.repository)}/refs"
            # The first question of all: somebody without a network should learn it in seconds.
            found = self._client(replace(self.retry, knocks=_KNOCKS)).json(path)
            refs = [*_listed(found, "branches"), *_listed(found, "tags")]
            self._commits = {str(r.get("name")): _commit(r, self.repository) for r in refs}
        return self._commits


def _listed(found: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    items = found.get(kind, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise HostileFileError(f"The hub's answer about refs has no list of {kind}.")
    return items


def _commit(ref: Mapping[str, Any], repository: str) -> str:
    commit = ref.get("targetCommit")
    if isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit):
        return commit
    raise HostileFileError(f"The hub's answer about {repository} has a ref without a commit.")


SOURCE = HubSource

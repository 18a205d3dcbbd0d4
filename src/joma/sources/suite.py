"""Several places as one suite: seeds in their own repositories, or a repository per checkpoint.

`suite:hub:google/multiberts-seed_*-step_*` is 140 repositories of one revision each, five runs in
all; `suite:hub:EleutherAI/pythia-14m-seed*` is nine repositories of 154 revisions. A revision is
called `PLACE@NAME`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, final

from torch import Tensor

from joma.sources import registry
from joma.sources._errors import SourceError
from joma.sources._index import Index
from joma.sources._names import Revision, parse, select
from joma.sources._traffic import Traffic
from joma.sources.base import AbstractSource


@final
class SuiteSource(AbstractSource):
    """The revisions of several sources, each under the name of its place."""

    def __init__(self, members: Mapping[str, AbstractSource], spec: str, which: str | None = None):
        """`spec` is the text after `suite:` and before `@`."""
        if not members:
            raise SourceError(f"No place matches {spec!r}; a suite needs at least one.")
        self.members = dict(members)
        self.which = which
        self._spec = spec

    @classmethod
    def opened(cls, where: str) -> "SuiteSource":
        """Patterns with commas between, each `KIND:PATTERN`; then `@` and which revisions."""
        patterns, at, which = where.partition("@")
        members: dict[str, AbstractSource] = {}
        for pattern in patterns.split(","):
            kind, colon, rest = pattern.strip().partition(":")
            if not colon or kind not in registry.names():
                kind, rest = "local", pattern.strip()
            opener = registry.load(kind)
            members |= {place: opener.opened(place) for place in opener.expanded(rest)}
        return cls(members, patterns, which if at else None)

    @property
    def spec(self) -> str:
        return f"suite:{self._spec}" + (f"@{self.which}" if self.which else "")

    @property
    def traffic(self) -> Traffic:
        counts = [m.traffic for m in self.members.values()]
        total = Traffic()
        for one in counts:
            total.add(size=one.bytes, requests=one.requests, retries=one.retries)
        return total

    def revisions(self) -> tuple[Revision, ...]:
        found = [
            _placed(place, revision)
            for place, member in self.members.items()
            for revision in member.revisions()
        ]
        return select(found, self.which)

    def index(self, revision: str) -> Index:
        member, name = self._member(revision)
        return replace(member.index(name), revision=revision)

    def read(
        self, revision: str, names: Iterable[str], *, device: str | None = None
    ) -> Mapping[str, Tensor]:
        member, name = self._member(revision)
        return member.read(name, names, device=device)

    def config(self, revision: str) -> dict[str, Any]:
        member, name = self._member(revision)
        return member.config(name)

    def pretrained(self, revision: str) -> dict[str, str]:
        member, name = self._member(revision)
        return member.pretrained(name)

    def _member(self, revision: str) -> tuple[AbstractSource, str]:
        place, _, name = revision.rpartition("@")
        if place not in self.members:
            raise SourceError(
                f"{revision[:80]!r} is not in this suite. Revisions are called PLACE@NAME, with "
                f"PLACE one of {', '.join(list(self.members)[:6])}."
            )
        return self.members[place], name


def _placed(place: str, revision: Revision) -> Revision:
    """A revision under its name in the suite; the place may state what `main` does not."""
    name = f"{place}@{revision.name}"
    if revision.name == "main":
        owner, slash, last = place.rpartition("/")
        stated = parse(last)
        if stated.problem is None and stated.run:
            run = f"{owner}{slash}{stated.run}"
            return replace(stated, name=name, run=run, commit=revision.commit)
    return replace(revision, name=name)


SOURCE = SuiteSource

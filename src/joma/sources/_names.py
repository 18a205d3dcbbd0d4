"""Names of revisions: which stage, step and token count they state, and in which order they come.

Each public suite has its own way of naming checkpoints; `parse` knows them all, and says so of a
name that it cannot read. Names come from strangers: what could be markup, a terminal code or a way
out of a directory is a problem, and a revision with such a name is listed but never opened.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from joma._core.registry import closest
from joma.sources._errors import SourceError

Unit: TypeAlias = Literal["step", "iteration", "checkpoint", "tokens"]

_SAFE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+=@/ -]{0,199}")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_UNITS: dict[str, Unit] = {"iter": "iteration", "ckpt": "checkpoint", "step": "step"}

# `checkpoint-1000` counts steps, as transformers' Trainer does; `ckpt_000` counts checkpoints.
_STEP = re.compile(
    r"""
    (?:(?P<before>(?!global[-_]?step).+?)[-_])?
    (?P<unit>global[-_]?step|step|checkpoint|iter|ckpt)[-_]?
    (?P<number>[0-9]{1,15})(?P<scale>[km])?
    (?:[-_](?:tokens[-_]?)?(?P<tokens>[0-9]{1,15})(?P<token_scale>[kmbt])t?)?
    (?:[-_](?P<seed>seed[-_][a-z0-9_-]+))?
    (?:-ckpt)?(?:\.pth?)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TOKENS = re.compile(r"(?P<tokens>[0-9]{1,15})(?P<scale>[kmbt])(?:t|[-_]?tokens)", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,15}")
_STAGE = re.compile(r"stage[-_]?[0-9]+([-_]ingredient[-_]?[0-9]+)?", re.IGNORECASE)
_SEED = re.compile(r"(.*[-_])?seed[-_]?[0-9]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Revision:
    """One checkpoint: its name at the source, and where in which run it was taken."""

    name: str
    run: str = ""
    """The training trajectory it belongs to: `EleutherAI/pythia-160m`, with a seed if named."""
    stage: str | None = None
    step: int | None = None
    """`None` if the name states none; then `tokens` or `problem` is there."""
    tokens: int | None = None
    """Training tokens as the name rounds them."""
    unit: Unit = "step"
    """What `step` counts; `tokens` if the name has only those."""
    commit: str | None = None
    problem: str | None = None
    """Why the name has no place in the order; `None` for a name that was understood."""

    @property
    def at(self) -> float:
        """Place on the time axis of a record: the step, else the tokens, else `nan`."""
        place = self.step if self.step is not None else self.tokens
        return math.nan if place is None else float(place)

    @property
    def key(self) -> tuple[Any, ...]:
        """Total order: by run, stage and step; names that were not understood come last.

        No stage counts as the first one: OLMo-2 has branches with and without `stage1-`.
        """
        missing = self.problem is not None
        place = -1 if math.isnan(self.at) else self.at
        return (
            missing,
            self.run,
            _natural(self.stage or "stage1"),
            place,
            self.tokens or 0,
            self.name,
        )


def parse(name: str, run: str = "", commit: str | None = None) -> Revision:
    """What the name of a revision states.

    Example:
        >>> parse("stage2-ingredient1-step3000-tokens13B").stage
        'stage2-ingredient1'
        >>> parse("multiberts-seed_0-step_20k").step
        20000
        >>> parse("main").problem
        "'main' states neither a step nor a token count."
    """
    problem = danger(name)
    if problem:
        return Revision(name, run, commit=commit, problem=problem)
    match = _STEP.fullmatch(name)
    if match is not None:
        before = match["before"] or ""
        stage = before if _STAGE.fullmatch(before) else None
        seeds = before if _SEED.fullmatch(before) else match["seed"]
        if not before or stage or seeds == before:
            return Revision(
                name,
                "/".join(part for part in (run, seeds) if part),
                stage,
                int(match["number"]) * _SCALE[(match["scale"] or "").lower()],
                _scaled(match["tokens"], match["token_scale"]),
                _UNITS.get(match["unit"].lower(), "step"),
                commit,
            )
    match = _TOKENS.fullmatch(name)
    if match is not None:
        tokens = _scaled(match["tokens"], match["scale"])
        return Revision(name, run, tokens=tokens, unit="tokens", commit=commit)
    return Revision(
        name, run, commit=commit, problem=f"{name!r} states neither a step nor a token count."
    )


def danger(name: str) -> str | None:
    """Why a name is not used as part of a path or an address; `None` if it may be."""
    if _SAFE.fullmatch(name) and not any(p in ("", ".", "..") for p in name.split("/")):
        return None
    return (
        f"Name {name[:80]!r} has characters or parts that a path, a page or a terminal might obey. "
        "Nothing is read under such a name; rename it (letters, digits and . _ - + = @)."
    )


def select(revisions: Iterable[Revision], which: str | None) -> tuple[Revision, ...]:
    """Those that `which` asks for, in order; all of them if it is `None`.

    Args:
        revisions: To choose from.
        which: Globs (`step*`), steps (`1000`) or ranges that include their ends (`1000..5000`,
            `stage1-step0..stage2-step100`), with commas between.

    Raises:
        SourceError: A part of `which` that matches nothing.
    """
    ordered = sorted(revisions, key=lambda revision: revision.key)
    if which is None:
        return tuple(ordered)
    wanted: set[str] = set()
    for part in which.split(","):
        found = {r.name for r in ordered if _matches(r, part.strip())}
        if not found:
            names = [r.name for r in ordered]
            raise SourceError(f"No revision matches {part!r}.{closest(part, _some(names))}")
        wanted |= found
    return tuple(r for r in ordered if r.name in wanted)


def _matches(revision: Revision, part: str) -> bool:
    first, dots, last = part.partition("..")
    if not dots:
        names = {revision.name, revision.name.rpartition("@")[2]}  # in a suite: REPOSITORY@NAME
        alike = any(fnmatchcase(name, part) for name in names)
        return alike or (bool(_NUMBER.fullmatch(part)) and revision.at == int(part))
    if revision.problem is not None:
        return False
    low, high = _place(first, revision, -math.inf), _place(last, revision, math.inf)
    return low <= _place(None, revision, 0.0) <= high


def _place(end: str | None, revision: Revision, default: float) -> tuple[Any, float]:
    """Where an end of a range lies, to be compared with `revision` (if `end` is `None`: itself)."""
    stage = _natural(revision.stage or "stage1")
    if end is None:
        return stage, revision.at
    if not end:
        return stage, default
    if _NUMBER.fullmatch(end):
        return stage, float(end)
    parsed = parse(end)
    if parsed.problem is not None:
        raise SourceError(f"{end!r} cannot end a range: {parsed.problem}")
    return _natural(parsed.stage or "stage1"), parsed.at


def _natural(text: str) -> tuple[tuple[str, int], ...]:
    """Sorts `stage10` after `stage2`."""
    return tuple((word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", text))


def _scaled(number: str | None, scale: str | None) -> int | None:
    return None if number is None else int(number) * _SCALE[(scale or "").lower()]


def _some(names: Sequence[str]) -> list[str]:
    """Enough names for a message."""
    return list(names) if len(names) <= 12 else [*names[:11], f"{names[-1]} (last)"]

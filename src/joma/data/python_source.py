"""Python source as tokens that know their place in the syntax tree.

A hierarchy that nobody made up: for each token the innermost node of the tree that contains it, and
from there the path to the root. Two tokens with a low common ancestor play the part of two leaves
in Theorem 5.
"""

import ast
import io
import tokenize
import warnings
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

_Place: TypeAlias = tuple[int, int]  # line from 1, column from 0 in bytes of UTF-8, as in `ast`

_LAYOUT = {tokenize.NEWLINE: "<newline>", tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>"}
_DROPPED = {tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}
_LEAVES = {"JoinedStr", "TemplateStr"}


@dataclass(frozen=True, eq=False)
class ParsedSource:
    """The tokens of one file and its syntax tree.

    Comments and blank lines are left out; line ends and changes of indentation are the words
    `<newline>`, `<indent>` and `<dedent>`, and belong to the block they stand in: for a `<dedent>`,
    the one it returns to. f-strings are leaves: Python 3.11 does not place what is inside them
    reliably.
    """

    words: tuple[str, ...]
    node: Int[Tensor, " context"]
    """Innermost node of each token; 0 is the module."""
    types: tuple[str, ...]
    """Type of each node, such as `FunctionDef`, parents before children."""
    parent: Int[Tensor, " nodes"]
    """Parent of each node; -1 above the module."""
    depth: Int[Tensor, " nodes"]
    """Edges between each node and the module."""

    def path(self, token: int) -> list[str]:
        """The node types from the module down to the token."""
        return [self.types[node] for node in reversed(self._ancestors(token))]

    def common_depth(self, first: int, second: int) -> int:
        """Depth of the closest common ancestor of two tokens."""
        above = set(self._ancestors(first))
        return int(self.depth[next(node for node in self._ancestors(second) if node in above)])

    def _ancestors(self, token: int) -> list[int]:
        found = [int(self.node[token])]
        while (above := int(self.parent[found[-1]])) >= 0:
            found.append(above)
        return found


@dataclass(frozen=True, eq=False)
class SourceCorpus:
    """What a set of files gave."""

    files: tuple[ParsedSource, ...]
    skipped: tuple[tuple[Path, str], ...]
    """Files that are no Python of this interpreter's version, with the reason."""


def parse(source: str) -> ParsedSource:
    """Tokens and tree of a source text. Raises `SyntaxError` if it is no Python.

    Example:
        >>> found = parse("total = price * 2")
        >>> found.words[2], found.path(2)
        ('price', ['Module', 'Assign', 'BinOp', 'Name'])
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in someone's file is not our news
        tree = ast.parse(source)
    words, places = _tokens(source)
    types, parents, depths, node = ["Module"], [-1], [0], [0] * len(words)
    waiting = [(placed, 0) for placed in reversed(_children(tree))]
    while waiting:  # parents first, so that a child overwrites its parent's mark on its tokens
        placed, parent = waiting.pop()
        here = len(types)
        types.append(placed.type)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        first, last = bisect_left(places, placed.start), bisect_left(places, placed.end)
        node[first:last] = [here] * (last - first)
        waiting += [(child, here) for child in reversed(placed.children)]
    return ParsedSource(
        tuple(words),
        torch.tensor(node, dtype=torch.int64),
        tuple(types),
        torch.tensor(parents),
        torch.tensor(depths),
    )


def parse_files(paths: Iterable[Path]) -> SourceCorpus:
    """Every file that parses, in the order given; the others are listed with the reason."""
    files, skipped = [], []
    for path in paths:
        try:
            with tokenize.open(path) as file:  # heeds the file's own coding line
                files.append(parse(file.read()))
        except (SyntaxError, ValueError, tokenize.TokenError, RecursionError) as error:
            skipped.append((path, f"{type(error).__name__}: {error}"))
    return SourceCorpus(tuple(files), tuple(skipped))


def read(directory: Path | str, *, limit: int | None = None) -> SourceCorpus:
    """The `*.py` files below a directory, in alphabetical order, at most `limit` of them.

    The standard library is at hand everywhere: `sysconfig.get_path("stdlib")`.
    """
    if not Path(directory).is_dir():
        raise ValueError(f"Source files are read from a directory; {directory} is none.")
    return parse_files(sorted(Path(directory).rglob("*.py"))[:limit])


class _Placed(NamedTuple):
    """A node of the tree that covers some of the text."""

    type: str
    start: _Place
    end: _Place
    children: list["_Placed"]


def _children(node: ast.AST) -> list[_Placed]:
    if type(node).__name__ in _LEAVES:
        return []
    found = (_placed(child) for child in ast.iter_child_nodes(node))
    return [placed for placed in found if placed is not None]


def _placed(node: ast.AST) -> _Placed | None:
    """The node with all its children inside it, or `None` if it is no piece of text (`Load`).

    The span is widened to the children's: `arguments` has none of its own, and that of a function
    leaves out its decorators.
    """
    children = _children(node)
    starts = [child.start for child in children]
    ends = [child.end for child in children]
    if getattr(node, "end_lineno", None) is not None:
        place: Any = node
        starts.append((place.lineno, place.col_offset))
        ends.append((place.end_lineno, place.end_col_offset))
    return _Placed(type(node).__name__, min(starts), max(ends), children) if starts else None


def _tokens(source: str) -> tuple[list[str], list[_Place]]:
    lines = source.split("\n")
    words, places = [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _DROPPED:
            continue
        line, column = token.start
        before = lines[line - 1][:column] if line <= len(lines) else ""
        words.append(_LAYOUT.get(token.type, token.string))
        column = column if before.isascii() else len(before.encode())
        # A dedent starts where the next statement does; one column back it is not a part of it.
        places.append((line, column - (token.type == tokenize.DEDENT)))
    return words, places

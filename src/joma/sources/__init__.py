"""Where checkpoints are, and reading only the tensors that are asked for.

`sources.open("hub:EleutherAI/pythia-160m@step*")` gives a source; `joma.sources.base` says what
one can do.
"""

from typing import TYPE_CHECKING

from joma._core.registry import Registry

if TYPE_CHECKING:
    from joma.sources.base import AbstractSource

__all__ = ["open", "registry"]

registry = Registry("joma.sources", "SOURCE")


def open(text: str) -> "AbstractSource":  # `sources.open` reads as it should
    """The source that a text names: `KIND:WHERE`, then `@` and which revisions, if not all.

    A text without a known kind is a local path. Revisions are globs (`step*`), steps
    (`1000`) or ranges (`1000..5000`, `stage1-step0..stage2-step100`), with commas between.

    Example:
        >>> open("hub:EleutherAI/pythia-160m@step0,1000..5000").spec
        'hub:EleutherAI/pythia-160m@step0,1000..5000'
    """
    kind, colon, where = text.partition(":")
    if not colon or kind not in registry.names():
        kind, where = "local", text
    source: AbstractSource = registry.load(kind).opened(where)
    return source

"""JSON from strangers: one object, no key twice, nothing that takes more than it weighs."""

import json
from typing import Any

from joma.sources._errors import HostileFileError


def parsed(data: bytes, what: str) -> dict[str, Any]:
    """The object that `data` spells.

    Raises:
        HostileFileError: Not JSON, not an object, nested too deeply, or a key stands twice.
    """
    found = anything(data, what)
    if not isinstance(found, dict):
        raise HostileFileError(f"{what} must be a JSON object; got {type(found).__name__}.")
    return found


def anything(data: bytes, what: str) -> Any:
    """What `data` spells, object or not."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise HostileFileError(
            f"{what} is not valid JSON: {reason}. Nothing of it is used."
        ) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"key {name[:80]!r} stands twice")
        found[name] = value
    return found

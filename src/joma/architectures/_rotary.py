"""Which coordinates of a head are turned together by rotary positions."""

from collections.abc import Mapping
from typing import Any

from joma.architectures._spec import Rotary


def rotary_pairs(rotary: Rotary, turned: int) -> list[tuple[int, int]] | None:
    """Pairs among the first `turned` coordinates of a head; None if that is not known.

    Example:
        >>> rotary_pairs("halves", 4), rotary_pairs("neighbours", 4)
        ([(0, 2), (1, 3)], [(0, 1), (2, 3)])
    """
    if rotary == "unknown":
        return None
    if rotary == "none":
        return []
    half = turned // 2
    if rotary == "halves":
        return [(i, i + half) for i in range(half)]
    return [(2 * i, 2 * i + 1) for i in range(half)]


def turned_width(settings: Mapping[str, Any], width: int) -> int:
    """How many coordinates of a head of that `width` turn, by a configuration of transformers."""
    if settings.get("alibi"):
        return 0
    if isinstance(settings.get("rotary_dim"), int):
        return int(settings["rotary_dim"])
    rope = settings.get("rope_parameters") or {}
    nested = [part for part in rope.values() if isinstance(part, Mapping)]
    for holder in (rope, *nested, settings):
        for name in ("partial_rotary_factor", "rotary_pct"):
            if isinstance(holder.get(name), float):
                return int(width * holder[name])
    return width

"""One file per benchmark: numbers beside their bars. `joma ls bench` lists them."""

from joma._core.registry import Registry

__all__ = ["registry"]

registry = Registry("joma.bench", "BENCH")

"""One file per model family: where its matrices and attentions are, by tensor name."""

from joma._core.registry import Registry

__all__ = ["registry"]

registry = Registry("joma.architectures", "ARCHITECTURE")

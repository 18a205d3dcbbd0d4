"""The ranks of a distributed run, as far as the monitor is concerned: who decides, what is added.

Between observations nothing is sent. An observation ends in one all-reduce of fixed size, in a
group of the monitor's own, which every rank enters whatever happened to its probes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.monitor.harmless import sharded
from joma.probes import live, ranks
from joma.probes.base import Sums
from joma.probes.ranks import Layout, Spot
from joma.probes.sums import MAX

PATIENCE: Final = timedelta(minutes=10)
"""How long a rank waits for the others before the monitor gives up, and training goes on."""
_AXES: Final = ("tp", "tensor", "cp", "context", "sp", "sequence", "pp", "pipeline")
_SIZES: Final = ("tensor", "pipeline", "context")


@dataclass(frozen=True)
class Shared:
    """What all ranks know after an all-reduce."""

    sums: Mapping[Spot, Sums]
    failed: tuple[bool, ...]
    """For each probe, whether it failed on some rank."""
    words: tuple[int, ...]
    """What rank 0 said."""


@dataclass
class Team:
    """This rank among the others; made by `formed`."""

    rank: int = 0
    size: int = 1
    group: Any = None
    _layout: Layout = field(default_factory=dict)
    _stale: bool = True

    def hear(self, word: int) -> int:
        """What rank 0 says. A collective."""
        if self.size == 1:
            return word
        told = torch.tensor([float(word) * (self.rank == 0)], dtype=torch.float64)
        dist.all_reduce(told, group=self.group)
        return round(float(told))

    def share(
        self, sums: Mapping[Spot, Sums], failed: Sequence[bool], words: Sequence[int]
    ) -> Shared:
        """Add up sums, failures and the words of rank 0. A collective; sums may be missing."""
        if self.size == 1:
            return Shared(sums, tuple(failed), tuple(words))
        if self._stale:
            self._layout, self._stale = ranks.agreed(ranks.layout_of(sums), self.group), False
        fits = all(self._layout.get(s) == shapes for s, shapes in ranks.layout_of(sums).items())
        head = [float(f) for f in failed] + [float(w) * (self.rank == 0) for w in words]
        flat = torch.cat(
            [torch.tensor([*head, float(not fits)], dtype=torch.float64), self._packed(sums, fits)]
        )
        dist.all_reduce(flat, group=self.group)
        head, body = flat[: len(head) + 1].tolist(), flat[len(head) + 1 :]
        self._stale = head[-1] > 0  # a place that is new to some rank: agree again next time
        return Shared(
            self._unpacked(body),
            tuple(f > 0 or self._stale for f in head[: len(failed)]),
            tuple(round(w) for w in head[len(failed) : -1]),
        )

    def _entries(self) -> list[tuple[Spot, str, tuple[int, ...]]]:
        return [(s, n, shape) for s, es in self._layout.items() for n, shape in sorted(es.items())]

    def _packed(self, sums: Mapping[Spot, Sums], fits: bool) -> Tensor:
        """Sums side by side. A maximum has a slot for each rank: adding then gathers it."""
        parts = [torch.zeros(0, dtype=torch.float64)]
        for spot, name, shape in self._entries():
            largest = name.startswith(MAX)
            held = sums[spot][name].detach().cpu().double() if fits and spot in sums else None
            if held is None:
                held = torch.full(shape, -torch.inf if largest else 0.0, dtype=torch.float64)
            if largest:
                slots = torch.zeros(self.size, *shape, dtype=torch.float64)
                slots[self.rank] = held
                held = slots
            parts.append(held.flatten())
        return torch.cat(parts)

    def _unpacked(self, body: Tensor) -> dict[Spot, dict[str, Tensor]]:
        whole: dict[Spot, dict[str, Tensor]] = {}
        for spot, name, shape in self._entries():
            largest = name.startswith(MAX)
            size = torch.Size([self.size, *shape] if largest else shape)
            part, body = body[: size.numel()].view(size), body[size.numel() :]
            whole.setdefault(spot, {})[name] = part.amax(0) if largest else part
        return whole


def formed(model: nn.Module) -> Team:
    """This process and its peers, in a group of their own. A collective, where there are peers.

    Raises:
        JomaError: The ranks hold different parts of the model.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Team()
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    mine = hashlib.sha256(repr(sorted(live.shapes(live.tensors(model)).items())).encode())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine.hexdigest(), group=group)
    if len(set(everyone)) > 1:
        raise JomaError(_sentence("The ranks hold different parts of it (pipeline parallel)"))
    return Team(dist.get_rank(), dist.get_world_size(), group)


def refuse(model: nn.Module) -> None:
    """Raise if one rank does not see whole heads and whole sequences of the model.

    Raises:
        JomaError: It is cut into tensor, pipeline or context parallel parts.
    """
    for config in live.configs(model):
        for kind in _SIZES:
            for name in (f"{kind}_model_parallel_size", f"{kind}_parallel_size"):
                size = getattr(config, name, 1)
                if isinstance(size, int) and size > 1:
                    raise JomaError(_sentence(f"Its configuration has {name}={size}"))
    tp = max((getattr(m, "_tp_size", None) or 1 for m in model.modules()), default=1)
    if tp > 1:
        raise JomaError(_sentence(f"It was loaded with tp_size={tp}"))
    engine = any(sharded(module) for module in model.modules())
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "placements"):
            _refuse_tensor(name, parameter, engine)


def _refuse_tensor(name: str, parameter: Any, engine: bool) -> None:
    axes = parameter.device_mesh.mesh_dim_names or ()
    cut = [p for p in parameter.placements if p.is_shard()]
    named = [axis for axis in axes if axis.lower() in _AXES]
    if len(cut) > 1 or named or (cut and not engine):
        where = f"placements {parameter.placements}, axes {axes or 'without names'}"
        raise JomaError(_sentence(f"{name} is a distributed tensor of {where}"))


def _sentence(found: str) -> str:
    return (
        "The monitor does not watch tensor, pipeline or context parallel models: no rank sees "
        f"whole heads and whole sequences there. {found}. Watch a data-parallel (DDP, FSDP2) run, "
        "or its checkpoints."
    )

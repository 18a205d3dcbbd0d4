"""The tensors of a live model under the names of its checkpoint, as the model uses them.

Wrappers (DDP, FSDP, torch.compile, activation checkpointing) and adapters (PEFT) change names;
here they are taken out again. The value of an adapted matrix is the effective one, W + BA.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.architectures.base import HEADS, Shapes, refuse_codes

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer"
    r"|modules_to_save\.[^.]+)\."
)
_ADAPTER_PARTS = re.compile(r"(?:^|\.)(?:lora_|hada_|lokr_|ia3_|original_module|parametrizations)")


def clean(name: str) -> str:
    """A name without what wrappers and adapters put into it.

    Example:
        >>> clean("_orig_mod.model.layers.0.mlp.up_proj.base_layer.weight")
        'model.layers.0.mlp.up_proj.weight'
    """
    return _WRAPPERS.sub("", f"{name}.")[:-1]


@dataclass(frozen=True)
class LiveTensor:
    """One parameter of a live model, with the adapters around its module."""

    owner: nn.Module
    attribute: str
    adapters: tuple[nn.Module, ...] = ()
    """From the outside in."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """As the matrix, not as its codes or shards; None if this is no tensor."""
        owner, tensor = self.owner, getattr(self.owner, self.attribute, None)
        if self.attribute == "weight":
            for rows, columns in (("out_features", "in_features"), ("outfeatures", "infeatures")):
                if isinstance(getattr(owner, rows, None), int):
                    return getattr(owner, rows), getattr(owner, columns)
        if not isinstance(tensor, Tensor):
            return None
        return tuple(getattr(tensor, "ds_shape", tensor.shape))

    def value(self, name: str) -> Tensor:
        """The tensor as the forward pass uses it, detached; refused if it holds codes."""
        tensor = getattr(self.owner, self.attribute, None)
        kind = type(tensor).__module__
        if not isinstance(tensor, Tensor) or kind.startswith("torchao"):
            refuse_codes(name, f"codes of {type(self.owner).__name__}")
        assert isinstance(tensor, Tensor)
        refuse_codes(name, str(tensor.dtype))
        tensor = tensor.detach()
        for adapter in self.adapters:
            for delta in _deltas(adapter, self.attribute, name):
                tensor = tensor + delta.detach().to(tensor)
        return tensor

    def gradient(self) -> Tensor | None:
        """The gradient that the last backward pass left, if any."""
        tensor = getattr(self.owner, self.attribute)
        return tensor.grad if isinstance(tensor, Tensor) else None


def tensors(model: nn.Module) -> dict[str, LiveTensor]:
    """Every parameter by its clean name; the copy that adapters train hides the original."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[str, LiveTensor] = {}
    for path, module in modules.items():
        if _ADAPTER_PARTS.search(path):
            continue
        adapters = []
        outer = path
        while outer.endswith("base_layer"):
            outer = outer.rpartition(".")[0]
            adapters.append(modules[outer])
        for attribute in _attributes(module):
            name = clean(f"{path}.{attribute}" if path else attribute)
            if name not in found or ".modules_to_save." in path:
                found[name] = LiveTensor(module, attribute, tuple(reversed(adapters)))
    return found


def modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its clean name; the outermost, where wrappers share it."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(clean(name), module)
    return found


def shapes(found: dict[str, LiveTensor]) -> Shapes:
    """Name -> shape, as a checkpoint of the model would list them."""
    known = ((name, tensor.shape) for name, tensor in found.items())
    return {name: shape for name, shape in known if shape is not None}


def model_types(model: nn.Module) -> list[str]:
    """`config.model_type` of the model and its parts, outermost first."""
    types = (getattr(c, "model_type", None) for c in configs(model))
    return list(dict.fromkeys(t for t in types if isinstance(t, str)))


def configs(model: nn.Module) -> list[Any]:
    """Every distinct configuration that a part of the model holds."""
    held = (getattr(module, "config", None) for module in model.modules())
    return list({id(c): c for c in held if hasattr(c, "model_type")}.values())


def head_count(model: nn.Module, module: nn.Module | None) -> int | None:
    """Query heads, from the attention module itself or else from the configuration."""
    for owner in (module, getattr(module, "config", None), *configs(model)):
        for name in HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int):
                return count
    return None


def _attributes(module: nn.Module) -> Iterator[str]:
    names = [name for name, p in module.named_parameters(recurse=False) if p is not None]
    names += list(getattr(module, "parametrizations", {}))
    # A module of quantised weights keeps codes under other names; it still stands for a matrix.
    quantised = any(hasattr(module, name) for name in ("qweight", "weight_packed"))
    return iter(dict.fromkeys([*names, *(["weight"] if quantised else [])]))


def _deltas(adapter: nn.Module, attribute: str, name: str) -> Iterator[Tensor]:
    """What the active adapters add to one parameter."""
    state: Any = adapter
    if state.merged or state.disable_adapters:
        return
    target = getattr(state, "parameter_name", "weight")
    if attribute != target:
        if attribute == "bias" and any(getattr(state, "lora_bias", {}).values()):
            raise JomaError(f"{name} is changed by a LoRA bias, which is not supported.")
        return
    trained = {*getattr(state, "lora_A", ()), *getattr(state, "lora_embedding_A", ())}
    for active in state.active_adapters:
        if trained and active not in trained:
            continue
        variant = getattr(state, "lora_variant", {}) or {}
        if active in variant or not hasattr(state, "get_delta_weight"):
            raise JomaError(
                f"{name} is adapted by {type(state).__name__} in a way that is not W + BA (DoRA, "
                "(IA)^3 and the like). Merge the adapter first: model.merge_adapter()."
            )
        yield state.get_delta_weight(active)

"""Edge file for joma[hf]: wrapping the attention implementation that a transformers model runs.

A model looks its attention function up by a name in its configuration. While it is observed, the
configuration carries a private name, under which a function is registered that shows the call
and then calls the model's own implementation with the same arguments. The mask function under the
private name is the model's own too: without it, padding and windows would be lost silently.
"""

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, no_type_check

import torch
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma._core.extras import extra
from joma.probes import slots
from joma.probes.base import Place
from joma.probes.calls import Kind
from joma.probes.slots import PRIVATE, AbstractReceiver

with extra("hf", packages=("transformers",), purpose="Observing a transformers model"):
    from transformers import PreTrainedModel
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

_TICKET = "_joma_ticket"
_NATIVE = "_joma_native"


class _Switched:
    """A configuration under its private name. Models may share one, so visitors are counted."""

    def __init__(self, config: Any):
        self.config = config
        self.native: str = config._attn_implementation_internal
        self.visitors = 0


_switched: dict[int, _Switched] = {}


def transformer(model: nn.Module) -> PreTrainedModel | None:
    """The outermost transformers model inside `model` (which may wrap it), if there is one."""
    return next((m for m in model.modules() if isinstance(m, PreTrainedModel)), None)


def wrappable(model: nn.Module) -> bool:
    """Whether the implementations that the model is set to can be wrapped; paged ones cannot."""
    names = [_native_name(config) for config in _configs(model)]
    return bool(names) and all(_kind(name) is not None for name in names)


def traceable(model: nn.Module) -> bool:
    """Whether a compiled graph can show its calls: not if its masks are no tensors."""
    return all(_kind(_native_name(config)) != "flex" for config in _configs(model))


@contextmanager
def watching(
    model: nn.Module, modules: Mapping[nn.Module, Place], receiver: AbstractReceiver
) -> Iterator[None]:
    """Observe these attention modules until the context ends; nothing of it is then left."""
    with ExitStack() as stack:
        for module, place in modules.items():
            ticket = slots.issue(receiver, place)
            stack.callback(slots.revoke, ticket)
            for part in module.modules():
                setattr(part, _TICKET, ticket)
                setattr(part, _NATIVE, _eager(part))
                stack.callback(vars(part).pop, _NATIVE, None)
                stack.callback(vars(part).pop, _TICKET, None)
        for config in _configs(model):
            _enter(config)
            stack.callback(_leave, config)
        yield


def example(model: PreTrainedModel) -> dict[str, Tensor] | None:
    """A small batch that the model accepts, with padding where it knows padding; None if unknown.

    Made without random numbers.
    """
    config = (
        model.config.get_text_config() if model.main_input_name == "input_ids" else model.config
    )
    device = next(model.parameters()).device
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", None)
        channels = getattr(config, "num_channels", 3)
        if not isinstance(size, int):
            return None
        pixels = torch.linspace(-1, 1, 2 * channels * size * size, device=device)
        return {"pixel_values": pixels.view(2, channels, size, size).to(model.dtype)}
    if model.main_input_name != "input_ids" or not isinstance(config.vocab_size, int):
        return None
    tokens = torch.arange(3, 27, device=device).view(2, 12) % config.vocab_size
    seen = torch.ones_like(tokens)
    seen[1, :4] = 0
    batch = {"input_ids": tokens, "attention_mask": seen}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = tokens.flip(0)
    return batch


def _configs(model: nn.Module) -> list[Any]:
    held = (getattr(module, "config", None) for module in model.modules())
    chosen = [c for c in held if getattr(c, "_attn_implementation_internal", None) is not None]
    return list({id(c): c for c in chosen}.values())


def _native_name(config: Any) -> str:
    held = _switched.get(id(config))
    name: str = held.native if held else config._attn_implementation_internal
    return name


def _kind(name: str) -> Kind | None:
    if "paged" in name:
        return None
    if name in ("eager", "sdpa"):
        return "eager" if name == "eager" else "sdpa"
    if name == "flex_attention":
        return "flex"
    return "flash" if "flash" in name else "sdpa"


def _enter(config: Any) -> None:
    held = _switched.setdefault(id(config), _Switched(config))
    held.visitors += 1
    if held.visitors == 1:
        private = PRIVATE + held.native
        AttentionInterface.register(private, _watched(held.native))
        if held.native in ALL_MASK_ATTENTION_FUNCTIONS:
            mask_function = ALL_MASK_ATTENTION_FUNCTIONS[held.native]
            AttentionMaskInterface.register(private, mask_function)
        config._attn_implementation_internal = private


def _leave(config: Any) -> None:
    held = _switched[id(config)]
    held.visitors -= 1
    if held.visitors:
        return
    if config._attn_implementation_internal == PRIVATE + held.native:  # else it was set meanwhile
        config._attn_implementation_internal = held.native
    del _switched[id(config)]
    if all(other.native != held.native for other in _switched.values()):
        AttentionInterface._global_mapping.pop(PRIVATE + held.native, None)
        AttentionMaskInterface._global_mapping.pop(PRIVATE + held.native, None)


@functools.cache  # one object per name: the compiler must recognise it at every switch
@no_type_check
def _watched(name):
    """The implementation called `name`, with every call shown first."""
    kind = _kind(name)
    # These ask the configuration for their own name while they run.
    asks = name not in ("eager", "sdpa", "flex_attention")

    @no_type_check
    def watched(module, query, key, value, attention_mask=None, **kwargs):
        if name == "eager":  # a model that shares the configuration may not carry the attribute
            native = getattr(module, _NATIVE, None) or _eager(module)
        else:
            native = ALL_ATTENTION_FUNCTIONS[name]
        ticket = getattr(module, _TICKET, None)
        if ticket is not None:
            causal = kwargs.get("is_causal")
            slots.show(
                ticket,
                kind,
                query,
                key,
                attention_mask,
                kwargs.get("position_bias"),
                kwargs.get("s_aux"),
                kwargs.get("cu_seq_lens_q"),
                kwargs.get("position_ids") if kind == "flash" else None,
                kwargs.get("scaling"),
                kwargs.get("softcap"),
                kwargs.get("sliding_window"),
                bool(getattr(module, "is_causal", True) if causal is None else causal),
            )
        if asks:
            config = module.config
            private = config._attn_implementation_internal
            config._attn_implementation_internal = name
            try:
                output = native(module, query, key, value, attention_mask, **kwargs)
            finally:
                config._attn_implementation_internal = private
        else:
            output = native(module, query, key, value, attention_mask, **kwargs)
        if ticket is not None:
            slots.compare(ticket, value, output[0])
        return output

    return watched


def _eager(module: nn.Module) -> Any:
    """The eager function of the file in which a module's forward was written."""
    written = inspect.unwrap(type(module).forward).__globals__
    return written.get("eager_attention_forward", _no_eager)


def _no_eager(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    raise JomaError(f"{type(module).__name__} has no eager_attention_forward beside it.")

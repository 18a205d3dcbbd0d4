"""What a model shows of the facts that a diagnosis asks for, by names and settings alone."""

import re
from collections.abc import Iterator
from typing import Any, Final

from torch import nn

from joma.analysis.facts import Facts

_QK_NORM: Final = re.compile(r"(q|k|qk|query|key)_?(layer_?norm|norm|ln)")
_SINKS: Final = ("sinks", "attn_sinks", "attention_sinks")
_SOFTCAPS: Final = ("attn_logit_softcapping", "attn_logit_softcap")
_HEADS: Final = ("CausalLM", "LMHead")


def facts_of_model(model: nn.Module) -> Facts:
    """Facts of a model before it trains. What cannot be seen is as by default: nothing special.

    A model of transformers counts as loaded from a checkpoint if it names one and is still in
    evaluation mode, in which loading leaves it; one made from a configuration is in training
    mode. Queries normalised by a function instead of a module are not seen.
    """
    leaves = {name.rpartition(".")[2] for name, m in model.named_modules() if _does(m)}
    parameters = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    configs = list(_configs(model))
    return Facts(
        qk_norm=any(_QK_NORM.fullmatch(leaf) for leaf in leaves),
        softcap=any(getattr(c, name, None) for c in configs for name in _SOFTCAPS),
        sinks=bool(parameters & set(_SINKS)),
        fine_tuned=any(_loaded(module) for module in model.modules()),
        vocabulary=_vocabulary(model),
    )


def causal(model: nn.Module) -> bool:
    """Whether a model of transformers predicts the next token."""
    return any(_writes(module) for module in model.modules())


def _vocabulary(model: nn.Module) -> int | None:
    writers = [module for module in model.modules() if _writes(module)]
    size = getattr(writers[0].config, "vocab_size", None) if writers else None
    return size if isinstance(size, int) else None


def _writes(module: nn.Module) -> bool:
    named = any(head in type(module).__name__ for head in _HEADS)
    return named and getattr(module, "config", None) is not None


def _loaded(module: nn.Module) -> bool:
    if getattr(module, "peft_config", None):
        return True
    named = getattr(getattr(module, "config", None), "_name_or_path", None)
    return bool(named) and not module.training


def _configs(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            yield config


def _does(module: nn.Module) -> bool:
    return not isinstance(module, nn.Identity)

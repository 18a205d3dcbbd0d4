"""Whether an attachment sees what a model computes: tried on a small batch before it is used.

A model may accept the name of an attention function and never call it, or call it with arguments
that mean something else. So the small batch is run twice, bare and observed. It passes if every
attention module showed one call per forward, if outputs and gradients are those of the bare
model, and if the attention computed from each call, densely, is the one that the model computed.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma.probes import calls
from joma.probes.aside import undisturbed
from joma.probes.base import AttentionCall, Place
from joma.probes.slots import AbstractReceiver

_TENSORS = 32
"""Gradients of this many of the smallest parameters are compared; all would cost their memory."""


class CoverageError(JomaError):
    """A model's attention cannot be observed. Says why, and what to do."""


class ExampleError(JomaError):
    """The model does not run on the small batch, observed or not."""


class Judge(AbstractReceiver):
    """Receives calls of the small batch and holds each against what the model computed from it."""

    def __init__(self) -> None:
        self.calls: Counter[Place] = Counter()
        self.problems: dict[Place, str] = {}
        self._last: dict[Place, AttentionCall] = {}

    def receive(self, place: Place, seen: AttentionCall) -> None:
        """Count the call and keep it until it is compared."""
        self.calls[place] += 1
        self._last[place] = seen

    def note(self, place: Place, problem: BaseException) -> None:
        """Remember why a call could not be read."""
        self.problems[place] = str(problem)

    def compare(self, place: Place, value: Tensor, output: Tensor) -> None:
        """The call must give the output that the model computed."""
        call = self._last.pop(place, None)
        if call is None:
            return
        with torch.no_grad():
            error = _mismatch(call, value, output)
        # Half precision rounds the output itself; a misread mask is wrong by the size of values.
        if error > (1e-4 if output.dtype in (torch.float32, torch.float64) else 5e-2):
            self.problems[place] = f"the call that was seen explains its output only to {error:.1e}"


def verdict(
    model: nn.Module,
    batch: Mapping[str, Any],
    modules: Mapping[nn.Module, Place],
    attach: Callable[[AbstractReceiver], AbstractContextManager[None]],
) -> str | None:
    """Why an attachment does not see this model rightly; None if it does.

    Leaves gradients, buffers, training flags and random states as they were.

    Raises:
        ExampleError: The bare model does not run on the batch.
    """
    with undisturbed(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the model about itself; it will repeat them
        bare, parameters = _bare(model, batch)
        judge = Judge()
        runs: Counter[Place] = Counter()
        with ExitStack() as stack:
            for module, place in modules.items():
                handle = module.register_forward_hook(lambda *_, p=place: runs.update([p]))
                stack.callback(handle.remove)
            try:
                with attach(judge):
                    observed = _run(model, batch, parameters)
            except Exception as error:
                return f"the observed model raised {type(error).__name__}: {error}"
        return _unseen(judge, runs) or _changed(model, batch, parameters, bare, observed)


def _unseen(judge: Judge, runs: Counter[Place]) -> str | None:
    """Calls that were not seen, or not read rightly."""
    for place, problem in judge.problems.items():
        return f"layer {place.layer}: {problem}"
    for place in runs:
        if judge.calls[place] != runs[place]:
            seen = f"{judge.calls[place]} calls in {runs[place]} forwards of layer {place.layer}"
            return f"attention modules that ran and calls that were seen do not agree ({seen})"
    return None if runs else "no attention module ran"


def _changed(
    model: nn.Module,
    batch: Mapping[str, Any],
    parameters: list[nn.Parameter],
    bare: list[Tensor],
    observed: list[Tensor],
) -> str | None:
    """Whether the observed model gives something else than the bare one, beyond its own noise."""
    if not _differs(bare, observed):
        return None
    noise = _noise(bare, _run(model, batch, parameters))
    return (
        "outputs or gradients change under observation" if _differs(bare, observed, noise) else None
    )


def _mismatch(call: AttentionCall, value: Tensor, output: Tensor) -> float:
    """Largest error of the call's attention times the values, relative to the values."""
    weights = calls.dense(call)
    value = value.detach().double().reshape(len(weights), -1, *value.shape[-2:])
    value = value[:, :, : weights.shape[-1]]
    value = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
    expected = (weights @ value).transpose(1, 2)  # [batch, query, head, width]
    error = (output.detach().double().reshape(expected.shape) - expected).abs()
    seen = ~expected.isnan()  # rows that see no key are whatever the kernel makes of them
    return float(error[seen].max() / value.abs().max()) if bool(seen.any()) else 0.0


def _bare(model: nn.Module, batch: Mapping[str, Any]) -> tuple[list[Tensor], list[nn.Parameter]]:
    """What the model gives unobserved, and the parameters whose gradients are part of it."""
    attempts = [_plain_parameters(model), []]  # some kernels have no backward on some devices
    for parameters in attempts:
        try:
            return _run(model, batch, parameters), parameters
        except Exception as error:
            failure = error
    name = type(model).__name__
    raise ExampleError(f"{name} does not run on the small batch: {failure}") from failure


def _run(
    model: nn.Module, batch: Mapping[str, Any], parameters: list[nn.Parameter]
) -> list[Tensor]:
    """Outputs of a forward, and gradients of these parameters."""
    with torch.inference_mode(False), torch.set_grad_enabled(bool(parameters)):
        outputs = [t for t in _floats(model(**batch)) if t.is_floating_point()]
        graded = [t for t in outputs if t.requires_grad]
        if not parameters or not graded:
            return [t.detach() for t in outputs]
        # Plain sums of normalised outputs have no gradient; a fixed wave has.
        waves = (torch.arange(t.numel(), device=t.device).cos().view_as(t) for t in graded)
        parts = [(t.float() * wave).mean() for t, wave in zip(graded, waves, strict=True)]
        gradients = torch.autograd.grad(torch.stack(parts).sum(), parameters, allow_unused=True)
    return [t.detach() for t in outputs] + [g for g in gradients if g is not None]


def _plain_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The smallest trained parameters; none if a sharding engine watches their gradients."""
    trained = [p for p in model.parameters() if p.requires_grad]
    engines = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
    sharded = any(base.__name__ in engines for m in model.modules() for base in type(m).__mro__)
    if sharded or any(hasattr(p, "ds_id") or hasattr(p, "placements") for p in trained):
        return []
    return sorted(trained, key=lambda p: p.numel())[:_TENSORS]


def _floats(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _floats(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _floats(value)


def _noise(one: list[Tensor], other: list[Tensor]) -> list[float]:
    """How far the bare model is from itself: kernels may add in another order each time."""
    return [
        float((a - b).abs().max()) if a.numel() else 0.0 for a, b in zip(one, other, strict=True)
    ]


def _differs(one: list[Tensor], other: list[Tensor], noise: list[float] | None = None) -> bool:
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other, strict=True)):
        return True
    if noise is None:
        return not all(
            torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True)
        )
    return any(d > 4 * n for d, n in zip(_noise(one, other), noise, strict=True))

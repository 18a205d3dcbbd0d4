"""Edge file for joma[hf]: a monitor inside the Trainer of transformers.

Callbacks of that Trainer see neither the loss of a step nor the length of its gradient, and what
a callback adds to a log comes too late for the Trainer's history. So three methods are listened
to while training lasts: what `training_step` and the accelerator's `clip_grad_norm_` return is
noted, and readings ride along when the Trainer itself calls `log`. No call is added to it: some
trainers empty their own statistics whenever they log.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from joma._core.errors import JomaError
from joma._core.extras import extra
from joma.monitor.facts import causal, facts_of_model
from joma.monitor.hosted import RECORDS, VERDICT, Hosted
from joma.monitor.sinks import registry
from joma.monitor.sinks.base import Alert

with extra("hf", packages=("transformers",), purpose="Watching a Trainer of transformers"):
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )

STATE: Final = "joma.watch"
"""Under this name, checkpoints of the Trainer keep the name of the run."""
_SPEAKERS: Final = ("wandb", "trackio")


def attach(trainer: Trainer, options: Mapping[str, Any]) -> Hosted:
    """Watch what this Trainer trains."""
    if any(isinstance(one, Watching) for one in trainer.callback_handler.callbacks):
        raise JomaError("This Trainer is watched already; joma.watch is called once for each.")
    hosted = Hosted(options)
    trainer.add_callback(Watching(trainer, hosted))
    return hosted


class Watching(TrainerCallback):
    """Tells a hosted monitor of each optimiser step, and the Trainer's log of each reading."""

    def __init__(self, trainer: Trainer, hosted: Hosted):
        """Nothing is touched before training begins."""
        self._trainer: Any = trainer
        self._hosted = hosted
        # Now: loading leaves a model in evaluation mode, and evaluating does so too.
        model: Any = trainer.model
        self._facts = facts_of_model(model)
        self._causal = causal(model)
        self._ears = ExitStack()
        self._loss: Tensor | None = None
        self._norm: Tensor | float | None = None
        self._rate: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The model is wrapped and sharded, and a checkpoint is loaded."""
        self._ears.close()  # of a training that was ended by an exception
        trainer = self._trainer
        kept: Any = state.stateful_callbacks
        saved = kept.get(STATE, {}).get("attributes", {}).get("run")
        self._hosted.begin(
            trainer.model_wrapped,
            step=state.global_step,
            run=saved if state.global_step else None,
            out=Path(args.output_dir or ".") / RECORDS,
            facts=replace(self._facts, warmup=int(args.get_warmup_steps(state.max_steps))),
            tell=_speaker(args.report_to),
        )
        kept[STATE] = {"args": {}, "attributes": {"run": self._hosted.run}}
        self._loss = self._norm = None
        self._ears.enter_context(_replaced(trainer, "training_step", self._trained))
        self._ears.enter_context(_replaced(trainer.accelerator, "clip_grad_norm_", self._clipped))
        self._ears.enter_context(_replaced(trainer, "log", self._logged))

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """The learning rate of this step; the scheduler moves before the step has ended."""
        self._rate = self._trainer.optimizer.param_groups[0]["lr"]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """An optimiser step is done, whatever was accumulated for it."""
        self._hosted.step(self._loss, self._rate, self._norm)
        self._loss = self._norm = None

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The Trainer has logged for the last time."""
        self._hosted.end()
        self._ears.close()

    def _trained(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
        if self._causal and isinstance(tokens, Tensor) and tokens.ndim == 2:
            self._hosted.lasts(tokens.shape[1])
        loss = step(*args, **kwargs)
        if isinstance(loss, Tensor):
            # Parts of one step: the Trainer has divided them already.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        return loss

    def _clipped(self, clip: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        if isinstance(norm, (Tensor, float)):
            self._norm = norm
        return norm

    def _logged(
        self, log: Callable[..., None], logs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        more: dict[str, Any] = {}
        last = "train_runtime" in logs
        if last or "loss" in logs:
            more |= self._hosted.news()
        if last and self._hosted.verdict:
            more[VERDICT] = self._hosted.verdict
        whole = {**logs, **more}
        log(whole, *args, **kwargs)
        # The Trainer and its callbacks add to what they are given and take from it, and the
        # caller of this hands the rest on.
        logs.clear()
        logs.update({name: value for name, value in whole.items() if name not in more})


@contextmanager
def _replaced(owner: Any, name: str, listener: Callable[..., Any]) -> Iterator[None]:
    """Call `listener` with a method and its arguments instead of the method."""
    held = vars(owner).get(name)
    method = getattr(owner, name)

    def heard(*args: Any, **kwargs: Any) -> Any:
        return listener(method, *args, **kwargs)

    setattr(owner, name, heard)
    try:
        yield
    finally:
        if vars(owner).get(name) is heard:
            if held is None:
                delattr(owner, name)
            else:
                setattr(owner, name, held)


def _speaker(names: Any) -> Callable[[Alert], None] | None:
    """Alerts into the runs of W&B and trackio that the Trainer reports to."""
    chosen = [registry.load(name).announce for name in _SPEAKERS if name in (names or ())]

    def tell(alert: Alert) -> None:
        for announce in chosen:
            announce(alert)

    return tell if chosen else None

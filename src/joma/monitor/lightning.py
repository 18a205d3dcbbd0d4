"""Edge file for joma[lightning]: a monitor inside Lightning's Trainer."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joma._core.errors import JomaError
from joma._core.extras import extra
from joma.monitor.facts import facts_of_model
from joma.monitor.hosted import RECORDS, STEP, VERDICT, Hosted
from joma.monitor.sinks.base import Alert

with extra("lightning", packages=("lightning",), purpose="Watching a Trainer of Lightning"):
    from lightning.pytorch import Callback

_LOG = logging.getLogger("joma.monitor")


def attach(trainer: Any, options: Mapping[str, Any]) -> Hosted:
    """Watch what this Trainer fits."""
    if any(isinstance(one, Watching) for one in trainer.callbacks):
        raise JomaError("This Trainer is watched already; joma.watch is called once for each.")
    hosted = Hosted(options)
    trainer.callbacks.insert(0, Watching(hosted))  # callbacks that save checkpoints stay last
    return hosted


def network(module: nn.Module) -> nn.Module:
    """The model inside a LightningModule: the part that holds all of its parameters, if any does.

    A `training_step` may call that part directly, and then no forward of the LightningModule
    itself is ever seen.
    """
    own = {id(p) for p in module.parameters()}
    for child in module.children():
        if own and {id(p) for p in child.parameters()} == own:
            return child
    return module


class Watching(Callback):
    """Tells a hosted monitor of each optimiser step, and the loggers of each reading."""

    def __init__(self, hosted: Hosted):
        """Nothing is touched before training begins."""
        self._hosted = hosted
        self._run: str | None = None
        self._at = 0
        self._loss: Tensor | None = None
        self._rate: float | None = None
        self._norm: Tensor | None = None
        self._failed: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the name of the run."""
        return {"run": self._hosted.run}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A checkpoint is loaded: records go on in its run."""
        self._run = state_dict.get("run")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is in place, and a checkpoint is loaded."""
        model = network(pl_module)
        self._at, self._loss = trainer.global_step, None
        self._loggers = trainer.loggers
        self._hosted.begin(
            model,
            step=self._at,
            run=self._run if self._at else None,
            out=Path(trainer.default_root_dir) / RECORDS,
            facts=facts_of_model(model),
            tell=self._alert,
        )

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Gradients are whole and not clipped yet."""
        self._rate = optimizer.param_groups[0]["lr"]
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        # The length of a sharded gradient would take a collective of its own.
        sharded = any(hasattr(g, "full_tensor") for g in gradients)
        self._norm = None if sharded else torch.nn.utils.get_total_norm(gradients)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is done; an optimiser step only if it was the last that is accumulated."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            # Parts of one step: Lightning has divided them already.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if trainer.global_step == self._at:
            return
        self._at = trainer.global_step
        self._publish()  # of the untrained model, before the step it was observed at has passed
        self._hosted.step(self._loss, self._rate, self._norm)
        self._loss = None
        self._publish()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Say the verdict, in words, to the loggers that take words."""
        verdict = self._hosted.end()
        for logger in self._loggers if verdict else ():
            self._tried(logger, lambda one: _write(one, verdict, self._at))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what waits; the error is the trainer's."""
        self._hosted.close()

    def _publish(self) -> None:
        news = self._hosted.news()
        if news:
            step = int(news[STEP])
            for logger in self._loggers:
                self._tried(logger, lambda one: one.log_metrics(news, step=step))

    def _alert(self, alert: Alert) -> None:
        for logger in self._loggers:
            self._tried(logger, lambda one: _warn(one, alert))

    def _tried(self, logger: Any, action: Any) -> None:
        try:
            action(logger)
        except Exception as problem:
            name = type(logger).__name__
            if name not in self._failed:
                self._failed.add(name)
                _LOG.warning("%s: %s: %s", name, type(problem).__name__, problem)


def _write(logger: Any, verdict: str, step: int) -> None:
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_text"):  # TensorBoard
        experiment.add_text(VERDICT, verdict, step)
    elif hasattr(experiment, "summary"):  # W&B
        experiment.summary[VERDICT] = verdict
    else:
        logger.log_hyperparams({VERDICT: verdict})


def _warn(logger: Any, alert: Alert) -> None:
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "alert"):
        experiment.alert(title=alert.title, text=f"Step {alert.step}: {alert.text}")
    elif hasattr(experiment, "add_text"):
        experiment.add_text(f"joma_alert/{alert.title}", alert.text, alert.step)

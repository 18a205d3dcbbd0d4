"""`joma.watch` in a real Trainer of Lightning: what arrives in its loggers and in the records."""

import csv
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from joma._core.errors import JomaError
from joma.monitor.attach import watch
from joma.records.store import Store
from unit.monitor.hosted_worker import lit, pl_trainer, rows

pl = pytest.importorskip("lightning.pytorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*num_workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:.*is not empty"),
]

WORKER = Path(__file__).with_name("hosted_worker.py")
ENTROPY = "joma/attention_entropy/layer_01"


def batches():
    return torch.utils.data.DataLoader(rows(), batch_size=4)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A module that was watched for 8 steps of two batches each, logging to a CSV file."""
    out = tmp_path_factory.mktemp("fitted")
    trainer = pl_trainer(out, pl.loggers.CSVLogger(str(out)))
    watched = watch(trainer, every=3)
    module = lit()
    trainer.fit(module, batches())
    trainer.save_checkpoint(out / "last.ckpt")
    return trainer, watched, module, out


def test_readings_are_in_the_logger_at_the_step_they_are_of(fitted):
    trainer, watched, _, _ = fitted
    with (Path(trainer.log_dir) / "metrics.csv").open() as file:
        logged = [row for row in csv.DictReader(file) if row[ENTROPY]]
    assert [int(row["step"]) for row in logged] == [0, 3, 6]
    assert [float(row["joma/step"]) for row in logged] == [0, 3, 6]
    assert float(logged[-1][ENTROPY]) == watched.metrics()[ENTROPY]


def test_the_loggers_own_numbers_are_still_there(fitted):
    with (Path(fitted[0].log_dir) / "metrics.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file) if row["loss"]] == [3, 7]


def test_steps_are_those_of_the_optimiser_and_carry_loss_rate_and_norm(fitted):
    read = Store(fitted[3] / "joma-records").read(run=fitted[1].run, steps=(0, 8)).to_pylist()
    for metric in ("loss", "learning_rate", "gradient_norm"):
        found = {r["step"]: r["value"] for r in read if r["metric"] == metric}
        assert list(found) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert all(value > 0 for value in found.values())
    assert {r["step"] for r in read if r["metric"] == "attention_entropy"} == {0, 3, 6}


def test_a_loss_of_two_batches_is_their_mean(fitted):
    untrained = lit().train(False).net
    first = next(iter(torch.utils.data.DataLoader(rows(), batch_size=8)))
    loss = torch.nn.functional.cross_entropy(
        untrained(first[:, :-1]).flatten(0, 1), first[:, 1:].flatten()
    )
    read = Store(fitted[3] / "joma-records").read(metric="loss", steps=(1, 1))
    # Dropout is on in training: it moves the loss of this model by less than a tenth.
    assert read["value"][0].as_py() == pytest.approx(loss.item(), abs=0.1)


def test_the_verdict_is_with_the_loggers_settings(fitted):
    text = (Path(fitted[0].log_dir) / "hparams.yaml").read_text()
    assert "joma_verdict" in text and "no warning (last look at step 6)" in text


def test_a_fit_from_a_checkpoint_goes_on_in_the_same_records(fitted, caplog):
    *_, out = fitted
    again = pl_trainer(out, max_steps=12)
    resumed = watch(again, every=3)
    with caplog.at_level(logging.INFO, "joma.monitor"):
        again.fit(lit(), batches(), ckpt_path=out / "last.ckpt")
    assert resumed.run == fitted[1].run
    read = Store(out / "joma-records").read(metric=("loss", "attention_entropy")).to_pylist()
    keys = [(r["metric"], r["step"], r["layer"], r["head"]) for r in read]
    assert len(keys) == len(set(keys))
    assert {key[1] for key in keys if key[0] == "loss"} == set(range(1, 13))
    assert resumed.verdict.startswith("no warning (last look at step 12)")
    assert caplog.messages[-1].endswith(resumed.verdict)


def test_tensorboard_gets_numbers_words_and_alerts(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from joma.monitor.sinks.base import Alert

    trainer = pl_trainer(tmp_path, pl.loggers.TensorBoardLogger(tmp_path), max_steps=2)
    watched = watch(trainer, every=1)
    trainer.fit(lit(), batches())
    watched._tell(Alert("trouble", "text", 2))
    trainer.logger.experiment.flush()
    events = EventAccumulator(trainer.log_dir).Reload()
    assert [e.step for e in events.Scalars(ENTROPY)] == [0, 1, 2]
    (said,) = events.Tensors("joma_verdict/text_summary")
    assert said.tensor_proto.string_val[0].decode() == watched.verdict
    assert events.Tensors("joma_alert/trouble/text_summary")[0].step == 2


def test_a_logger_that_fails_is_said_once_and_fitting_goes_on(tmp_path, caplog):
    class Fails(pl.loggers.CSVLogger):
        def log_metrics(self, metrics, step=None):
            if any("joma" in name for name in metrics):
                raise OSError("no space left")

    trainer = pl_trainer(tmp_path, Fails(str(tmp_path)), max_steps=3)
    watched = watch(trainer, every=1)
    trainer.fit(lit(), batches())
    assert trainer.global_step == 3 and watched.cost().observed == 4
    assert caplog.text.count("no space left") == 1


def test_an_error_in_training_stays_the_users_and_records_are_written(tmp_path):
    module = lit()
    step = module.training_step
    module.training_step = lambda batch, batch_idx: (
        step(batch, batch_idx) if batch_idx < 4 else 1 / 0
    )
    trainer = pl_trainer(tmp_path)
    watched = watch(trainer, every=1)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module, batches())
    read = Store(tmp_path / "joma-records").read(metric="loss", run=watched.run)
    assert read["step"].to_pylist() == [1, 2]


def test_one_watch_is_enough(tmp_path):
    trainer = pl_trainer(tmp_path)
    watch(trainer)
    with pytest.raises(JomaError, match="watched already"):
        watch(trainer)


def test_a_watched_fit_is_bit_identical():
    command = [sys.executable, "-W", "ignore", str(WORKER), "lightning"]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout.splitlines()[-1])
    assert found["bare"] == found["watched"]

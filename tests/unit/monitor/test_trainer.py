"""`joma.watch` in a real Trainer of transformers: what arrives where, and what stays as it was."""

import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest

from joma._core.errors import JomaError
from joma.monitor.attach import watch
from joma.records.store import Store
from unit.monitor.hosted_worker import LENGTH, VOCAB, hf_trainer, llama

pytestmark = pytest.mark.hf

WORKER = Path(__file__).with_name("hosted_worker.py")
READINGS = [f"joma/{m}/layer_0{n}" for m in ("attention_entropy", "max_logit") for n in (0, 1)]
SAME = 1e-6  # the Trainer sums losses of several steps in float32


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A Trainer that was watched for 12 steps of two batches each, reporting to TensorBoard."""
    pytest.importorskip("tensorboard")
    out = tmp_path_factory.mktemp("trained")
    trainer = hf_trainer(out, report_to="tensorboard")
    watched = watch(trainer, every=3)
    end = trainer.train()
    return trainer, watched, end, out


def table(out, metric, **more):
    rows = Store(out / "joma-records").read(metric=metric, **more).to_pylist()
    return {int(row["step"]): row["value"] for row in rows}


def test_readings_of_every_layer_are_in_the_log_history(trained):
    history = trained[0].state.log_history
    logged = [entry for entry in history if "loss" in entry]
    assert [entry["step"] for entry in logged] == [4, 8, 12]
    assert [entry["joma/step"] for entry in logged] == [3, 6, 12]
    assert all(name in entry for name in READINGS for entry in logged)
    assert all(math.isfinite(entry[name]) for name in READINGS for entry in logged)
    assert logged[-1]["joma/stable_rank/layer_01/mlp.up"] >= 1


def test_the_event_file_of_the_trainer_holds_the_same_readings(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer, watched, _, out = trained
    (folder,) = {path.parent for path in out.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder)).Reload()
    for name in READINGS:
        points = {e.step: e.value for e in events.Scalars(f"train/{name}")}
        expected = {e["step"]: e[name] for e in trainer.state.log_history if name in e}
        assert points == pytest.approx(expected, rel=SAME)
    (text,) = events.Tensors("train/joma_verdict/text_summary")
    assert text.tensor_proto.string_val[0].decode() == watched.verdict


def test_loss_rate_and_norm_of_each_optimiser_step_are_those_of_the_trainer(trained):
    trainer, _, _, out = trained
    loss, rate = table(out, "loss"), table(out, "learning_rate")
    norm = table(out, "gradient_norm")
    assert list(loss) == list(rate) == list(norm) == list(range(1, 13))
    for entry in trainer.state.log_history[:-1]:
        last = entry["step"]
        mean = sum(loss[step] for step in range(last - 3, last + 1)) / 4
        assert mean == pytest.approx(entry["loss"], rel=SAME)
        assert rate[last] == entry["learning_rate"]
        assert norm[last] == pytest.approx(entry["grad_norm"], rel=SAME)


def test_the_verdict_is_logged_once_at_the_end_and_handed_to_nobody(trained):
    trainer, watched, end, _ = trained
    said = [e["joma_verdict"] for e in trainer.state.log_history if "joma_verdict" in e]
    assert said == [watched.verdict]
    assert watched.verdict.startswith("no warning (last look at step 12)")
    assert not [name for name in end.metrics if "joma" in name]


def test_facts_of_the_run_are_kept_with_the_records(trained):
    (noted,) = Store(trained[3] / "joma-records").provenance().values()
    facts = noted["config"]["joma_facts"]
    assert facts["warmup"] == 3 and facts["vocabulary"] == VOCAB
    assert not facts["fine_tuned"] and not facts["qk_norm"]
    assert trained[1]._judge.facts.sequence_length == LENGTH


def test_the_trainer_is_left_as_it_was(trained):
    trainer = trained[0]
    assert not {"log", "training_step"} & set(vars(trainer))
    assert "clip_grad_norm_" not in vars(trainer.accelerator)
    assert not trainer.model._forward_pre_hooks


def test_a_resumed_training_goes_on_in_the_same_records(trained, caplog):
    _, watched, _, out = trained
    again = hf_trainer(out, max_steps=15)
    resumed = watch(again, every=3)
    with caplog.at_level(logging.INFO, "joma.monitor"):
        again.train(resume_from_checkpoint=str(out / "checkpoint-12"))
    assert resumed.run == watched.run
    rows = Store(out / "joma-records").read(metric=("loss", "attention_entropy")).to_pylist()
    keys = [(r["metric"], r["step"], r["layer"], r["head"]) for r in rows]
    assert len(keys) == len(set(keys))
    assert {k[1] for k in keys if k[0] == "loss"} == set(range(1, 16))
    assert {k[1] for k in keys if k[0] == "attention_entropy"} == {0, 3, 6, 9, 12, 15}
    assert resumed.verdict.startswith("no warning (last look at step 15)")
    assert caplog.messages[-1] == f"Run {watched.run}: {resumed.verdict}"


def test_a_fresh_training_in_the_same_folder_is_a_run_of_its_own(tmp_path):
    names = []
    for number in range(2):
        trainer = hf_trainer(tmp_path, max_steps=1, save_strategy="no")
        watched = watch(trainer, every=1, run=None if number else "first")
        trainer.train()
        names.append(watched.run)
    assert Store(tmp_path / "joma-records").runs() == sorted(names)
    assert len(set(names)) == 2


def test_a_model_from_a_checkpoint_is_not_judged_unless_the_user_says_so(tmp_path):
    llama().save_pretrained(tmp_path / "model")
    answers = []
    for facts in ({}, {"fine_tuned": False}):
        model = type(llama()).from_pretrained(tmp_path / "model")
        trainer = hf_trainer(tmp_path, model, max_steps=5, save_strategy="no")
        watched = watch(trainer, every=1, config={"joma_facts": facts})
        trainer.train()
        answers.append(watched.verdict)
    assert answers[0].startswith("cannot say") and "from a checkpoint" in answers[0]
    assert answers[1].startswith("no warning")


def test_a_training_that_was_cut_short_can_be_started_again(tmp_path):
    trainer = hf_trainer(tmp_path, save_strategy="no", max_steps=4)
    watched = watch(trainer, every=1)
    collate, trainer.data_collator = trainer.data_collator, lambda rows: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    trainer.data_collator = collate
    trainer.train()
    loss = table(tmp_path, "loss", run=watched.run)
    assert list(loss) == [1, 2, 3, 4]
    assert not {"log", "training_step"} & set(vars(trainer))


def test_alerts_reach_the_callback_and_another_judge_silences_the_verdict(tmp_path):
    from joma.monitor.sinks.base import Alert

    heard = []
    trainer = hf_trainer(tmp_path, max_steps=2, save_strategy="no")
    mine = {"judge": lambda step, numbers: [Alert("mine", "text", step)], "on_alert": heard.append}
    watched = watch(trainer, every=1, **mine)
    trainer.train()
    assert [(a.title, a.step) for a in heard] == [("mine", 0), ("mine", 1), ("mine", 2)]
    assert watched.alerts == heard and watched.verdict == ""
    assert not any("joma_verdict" in entry for entry in trainer.state.log_history)


def test_a_judge_that_raises_costs_no_reading(tmp_path, caplog):
    trainer = hf_trainer(tmp_path, max_steps=2, save_strategy="no", logging_steps=1)
    watched = watch(trainer, every=1, judge=lambda step, numbers: 1 / 0)
    trainer.train()
    assert [e.get("joma/step") for e in trainer.state.log_history] == [1, 2, None]
    assert caplog.text.count("ZeroDivisionError") == 1
    assert watched.judge_errors == 3


def test_mistakes_are_refused_when_watch_is_called(tmp_path):
    trainer = hf_trainer(tmp_path)
    with pytest.raises(JomaError, match=r"no option 'evry'\. Did you mean 'every'"):
        watch(trainer, evry=3)
    with pytest.raises(JomaError, match="no option 'step'"):
        watch(trainer, step=3)
    watch(trainer)
    with pytest.raises(JomaError, match="watched already"):
        watch(trainer)
    with pytest.raises(JomaError, match=r"got builtins\.dict.*joma\.Monitor"):
        watch({})


def test_a_watched_training_is_bit_identical_and_logs_the_same_otherwise():
    command = [sys.executable, "-W", "ignore", str(WORKER), "transformers"]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout.splitlines()[-1])
    assert len(found["bare"]["history"]) == 4
    assert found["bare"] == found["watched"]

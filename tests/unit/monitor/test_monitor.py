"""What the monitor sees, writes and says when nothing goes wrong."""

import math

import pytest
import torch

from joma._core.errors import JomaError
from joma.bench import monitor as bench
from joma.metrics import entropy
from joma.monitor import scene, schedule
from joma.monitor.clock import paced
from joma.monitor.monitor import DEFAULT, Monitor
from joma.monitor.sinks.base import AbstractSink, Alert
from joma.probes.observe import observe
from joma.records.schema import Context
from joma.records.store import Store
from unit.monitor.training import VOCAB, small

TOKENS = torch.arange(24).view(4, 6) % VOCAB


def steps(monitor, count, tokens=TOKENS, model=None):
    model = monitor._model if model is None else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        loss = model(tokens).logsumexp(-1).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        monitor.step(loss=loss, lr=0.1, grad_norm=torch.tensor(2.0))


class Keeps(AbstractSink):
    def __init__(self):
        self.entries, self.alerts, self.calls = [], [], []

    def open(self, run, out):
        self.calls.append(("open", run, out))

    def log(self, entry):
        self.entries.append(entry)

    def alert(self, alert):
        self.alerts.append(alert)

    def close(self):
        self.calls.append(("close",))


def test_readings_are_those_of_the_model_on_the_fixed_batch(tmp_path):
    model = small()
    with Monitor(model, every=2, out=tmp_path, run="a", batch=TOKENS[:2]) as monitor:
        steps(monitor, 4)
    model.eval()
    with observe(model, [entropy.PROBE]) as seen, torch.no_grad():
        model(TOKENS[:2])
    expected = {(r.layer, r.head): r.value for r in seen.streamed() if r.metric == entropy_name}
    table = Store(tmp_path).read(run="a", metric=entropy_name, steps=(4, 4))
    found = {(r["layer"], r["head"]): r["value"] for r in table.to_pylist()}
    assert found == expected
    layer = sum(value for (at, _), value in expected.items() if at == 1) / 2
    assert monitor.metrics()["joma/attention_entropy/layer_01"] == pytest.approx(layer, rel=1e-12)


entropy_name = "attention_entropy"


def test_the_untrained_model_is_observed_before_its_first_update(tmp_path):
    with Monitor(small(), every=3, out=tmp_path, run="a") as monitor:
        steps(monitor, 7)
    table = Store(tmp_path).read(run="a", metric=entropy_name)
    assert sorted(set(table["step"].to_pylist())) == [0, 3, 6]
    assert set(table["context"].to_pylist()) == {Context.PROBE.value}
    assert set(table["sequence_length"].to_pylist()) == {6}
    weights = Store(tmp_path).read(run="a", metric="stable_rank")
    assert set(weights["context"].to_pylist()) == {Context.WEIGHTS.value}
    assert set(weights["bound"].to_pylist()) == {"certified"}


def test_loss_rate_and_norm_of_every_step_are_recorded_as_given(tmp_path):
    with Monitor(small(), every=3, out=tmp_path, run="a") as monitor:
        steps(monitor, 4)
    for metric, value in {"learning_rate": 0.1, "gradient_norm": 2.0}.items():
        table = Store(tmp_path).read(run="a", metric=metric)
        assert table["step"].to_pylist() == [1, 2, 3, 4]
        assert table["value"].to_pylist() == [value] * 4
    assert len(Store(tmp_path).read(run="a", metric="loss")) == 4


def test_the_same_run_gives_the_same_records(tmp_path):
    for name in ("a", "b"):
        with Monitor(small(dropout=0.0), every=2, out=tmp_path, run=name) as monitor:
            steps(monitor, 4)
    one, other = (
        [r | {"run": None} for r in Store(tmp_path).read(run=n).to_pylist() if timeless(r)]
        for n in ("a", "b")
    )
    assert one == other


def timeless(row):
    return row["metric"] != "overhead_percent"


def test_names_are_flat_and_heads_stay_in_the_records(tmp_path):
    sink = Keeps()
    with Monitor(small(), every=2, out=tmp_path, run="a", sinks=[sink]) as monitor:
        steps(monitor, 2)
    layers = [f"layer_0{n}" for n in (0, 1)]
    kinds = ("attention_entropy", "max_logit", "stable_rank")
    expected = {f"joma/{kind}/{layer}" for kind in kinds for layer in layers}
    assert set(sink.entries[0].metrics) == expected
    assert set(sink.entries[1].metrics) == expected | {"joma/overhead_percent"}
    assert sink.entries[1].metrics == monitor.metrics()
    assert sink.calls == [("open", "a", tmp_path), ("close",)]


def test_training_forwards_are_read_as_such(tmp_path):
    with Monitor(small(), every=1, out=tmp_path, run="a", source="train") as monitor:
        steps(monitor, 3)
    table = Store(tmp_path).read(run="a", metric=entropy_name)
    assert sorted(set(table["step"].to_pylist())) == [0, 1, 2]  # states before the three updates
    assert set(table["context"].to_pylist()) == {Context.TRAIN.value}


def test_a_judge_is_asked_and_its_alerts_are_heard(tmp_path):
    def judge(step, numbers):
        if step == 2:
            assert numbers["gradient_norm"] == 2.0 and "joma/max_logit/layer_00" in numbers
            yield Alert("logits exploding", "Layer 0.", step, layer=0)

    sink, heard = Keeps(), []
    told = {"judge": judge, "on_alert": heard.append, "sinks": [sink]}
    with Monitor(small(), every=1, out=tmp_path, **told) as monitor:
        steps(monitor, 3)
    assert (
        heard
        == sink.alerts
        == monitor.alerts
        == [Alert("logits exploding", "Layer 0.", 2, layer=0)]
    )


def test_only_forwards_with_gradients_give_the_batch(tmp_path):
    model = small()
    with Monitor(model, every=1, out=tmp_path, run="a") as monitor:
        with torch.no_grad():
            model(TOKENS[:, :3])
        steps(monitor, 1)
    assert set(
        Store(tmp_path).read(run="a", metric=entropy_name)["sequence_length"].to_pylist()
    ) == {6}


def test_a_model_that_is_called_behind_the_monitor_is_said(tmp_path, caplog):
    model = small()
    with Monitor(model, every=1, out=tmp_path, run="a") as monitor:
        steps(monitor, 2, model=lambda_model(model))
    assert "no forward of the model was seen" in caplog.text
    assert len(Store(tmp_path).read(run="a", metric="loss")) == 2


def lambda_model(model):
    """Calls forward itself, past all hooks."""

    class Behind:
        parameters = model.parameters

        def __call__(self, tokens):
            return model.forward(tokens)

    return Behind()


def test_nothing_is_left_on_the_model(tmp_path):
    model = small()
    before = [sorted(vars(m)) for m in model.modules()]
    with Monitor(model, every=1, out=tmp_path) as monitor:
        steps(monitor, 2)
    assert [sorted(vars(m)) for m in model.modules()] == before
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_a_monitor_that_is_closed_takes_no_more(tmp_path):
    with Monitor(small(), every=1, out=tmp_path, run="a") as monitor:
        steps(monitor, 1)
    monitor.close()
    steps(monitor, 2)
    assert Store(tmp_path).read(run="a", metric="loss")["step"].to_pylist() == [1]


@pytest.mark.parametrize("wrong", [{"budget": 0.0}, {"every": 0}])
def test_settings_that_make_no_sense_are_refused(wrong, tmp_path):
    with pytest.raises(JomaError, match="must be"):
        Monitor(small(), out=tmp_path, **wrong)


def test_some_sequences_of_a_large_batch_are_kept():
    tokens = torch.zeros(64, 100, dtype=torch.long)
    kept = scene.taken((tokens,), {"mask": torch.ones(64, 100), "scale": torch.tensor(2.0)})
    assert kept.args[0].shape == (10, 100) and kept.kwargs["mask"].shape == (10, 100)
    assert kept.kwargs["scale"] == 2.0


def test_a_packed_batch_is_kept_whole():
    tokens, borders = torch.zeros(1, 5000), torch.tensor([0, 2000, 5000])
    kept = scene.taken((), {"input_ids": tokens, "cu_seq_lens_q": borders, "past_key_values": 1})
    assert kept.kwargs["input_ids"].shape == (1, 5000)
    assert kept.kwargs["cu_seq_lens_q"].tolist() == borders.tolist()
    assert "past_key_values" not in kept.kwargs


def test_half_precision_of_training_is_that_of_observation(tmp_path):
    seen = []

    class Notes(type(entropy.PROBE)):
        def observe(self, call):
            seen.append(call.query.dtype)
            return super().observe(call)

    model = small()
    with Monitor(model, [Notes()], 1, out=tmp_path) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(TOKENS).float().mean()
        loss.backward()
        monitor.step()
    assert seen == [torch.bfloat16] * 4  # two layers, twice; the second time outside of autocast


def test_powers_are_dense_first():
    wanted = [s for s in range(70) if schedule.powers(16, then=32)(s)]
    assert wanted == [0, 1, 2, 4, 8, 16, 32, 64]
    assert schedule.following(lambda step: step == 3, 4) is None


@pytest.mark.parametrize("at", [0, 5, 64, 1000])
@pytest.mark.parametrize("look", [1e-3, 0.1, 3.0])
def test_the_pace_keeps_to_the_budget_and_is_not_slower_than_it_must(look, at):
    known = {"budget": 0.01, "look": look, "step": 0.5}
    every = paced(**known, spent=0.0, elapsed=0.5 * at, at=at)
    assert math.log2(every).is_integer()
    assert look / (look + every * 0.5) <= 0.01
    if every > 1 and at == 1000:
        assert look / (look + every / 2 * 0.5) > 0.01


def test_what_was_overspent_is_paid_back_before_the_next_look():
    known = {"budget": 0.01, "look": 0.01, "step": 1.0, "at": 0}
    assert paced(**known, spent=0.0, elapsed=1.0) == 1
    assert paced(**known, spent=1.0, elapsed=1.0) == 128


def test_the_defaults_are_entropy_logit_and_rank():
    names = [type(probe).__name__ for probe in DEFAULT]
    assert names == ["AttentionEntropyProbe", "AttentionLogitProbe", "StableRankProbe"]


def test_the_benchmark_of_memory_observes_every_step(tmp_path):
    _, grown = bench._memory(10, tmp_path)
    assert grown.name == "memory growth over 10 observed steps" and grown.bar == 5.0
    assert len(Store(tmp_path).read(run="memory", metric="loss")) == 12

"""Plans, keys and values of a sweep: what they depend on, and what they do not."""

import json
import math
import time
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from joma._core.errors import JomaError
from joma.metrics.coherence import MlpCoherenceProbe
from joma.metrics.rank import stable_rank
from joma.probes.base import AbstractWeightProbe, Need
from joma.sources.local import LocalSource
from joma.sources.memory import MemorySource
from joma.sweep import plan as planning, quarantine
from joma.sweep.engines import registry
from joma.sweep.engines.base import AbstractEngine
from joma.sweep.job import Text
from joma.sweep.plan import plan
from joma.sweep.run import Sweep
from unit.sweep.logged import LoggedSource, reads
from unit.sweep.suites import CONFIG, revision_names, trajectory


class Dice(AbstractWeightProbe):
    """Draws from the global random state, as a careless probe would."""

    need: ClassVar = Need.MLP_IN

    def measure(self, place, tensors, warm=None):
        return [place.reading("dice", torch.rand(()).item())], None


class Warmth(AbstractWeightProbe):
    """Says whether it was given a start."""

    need: ClassVar = Need.MLP_IN

    def measure(self, place, tensors, warm=None):
        return [place.reading("warm", float(warm is not None))], "a start"


class Stuck(AbstractWeightProbe):
    need: ClassVar = Need.MLP_IN

    def measure(self, place, tensors, warm=None):
        if place.layer == 0:
            time.sleep(60)
        return [place.reading("stuck", 0.0)], None


def memory(count=20, **more):
    return MemorySource(
        dict(zip(revision_names(count), trajectory(count, **more), strict=True)), CONFIG
    )


@pytest.mark.parametrize("name", registry.names())
def test_every_engine_is_an_engine(name):
    pytest.importorskip("ray") if name == "ray" else None
    assert issubclass(registry.load(name), AbstractEngine)


def test_values_are_those_of_the_metric_on_the_matrix(tmp_path):
    source = memory(3)
    done = Sweep(source, ["rank"], out=tmp_path).run()
    row = done.store.read(metric="stable_rank", layers=[2], steps=(1000, 1000)).to_pylist()[0]
    weight = source.checkpoints["step1000"]["gpt_neox.layers.2.mlp.dense_h_to_4h.weight"]
    assert row["value"] == stable_rank(weight).value
    assert row["lower"] <= row["value"] <= row["upper"]
    assert row["context"] == "weights"


def test_serial_and_process_engines_give_the_same_records(tmp_path):
    source, probes = memory(20), {"dice": Dice(), "coherence": MlpCoherenceProbe()}
    serial = Sweep(source, probes, out=tmp_path / "serial").run()
    process = Sweep(source, probes, out=tmp_path / "p", engine="process", workers=2).run()
    assert serial.store.read().equals(process.store.read())
    assert process.done == serial.done == 6


def test_random_numbers_of_a_probe_depend_on_run_revision_and_place_only(tmp_path):
    whole = Sweep(memory(20), {"dice": Dice()}, out=tmp_path / "whole").run()
    torch.manual_seed(7)
    state = torch.get_rng_state()
    again = Sweep(memory(20), {"dice": Dice()}, out=tmp_path / "again").run()
    assert torch.equal(torch.get_rng_state(), state), "the global random state was moved"
    assert again.store.read().equals(whole.store.read())
    values = whole.store.read()["value"].to_pylist()
    assert len(set(values)) == len(values)


def test_a_finished_sweep_reads_nothing_again(folder, tmp_path):
    log = tmp_path / "log"
    first = Sweep(LoggedSource(folder, log), ["rank"], out=tmp_path / "out").run()
    seen = len(reads(log))
    again = Sweep(LoggedSource(folder, log), ["rank"], out=tmp_path / "out").run()
    assert (first.done, again.done, len(reads(log))) == (6, 0, seen)
    assert again.plan.done == 48


def test_a_suite_that_grows_and_a_probe_that_joins_double_nothing(tmp_path):
    states = dict(zip(revision_names(20), trajectory(20), strict=True))
    some = MemorySource({n: states[n] for n in list(states)[:11]}, CONFIG)
    Sweep(some, ["rank"], out=tmp_path).run()
    done = Sweep(MemorySource(states, CONFIG), ["rank", "coherence"], out=tmp_path).run()
    for metric in ("stable_rank", "mlp_coherence"):
        found = done.store.read(metric=metric, layers=[0])
        assert found["step"].to_pylist() == [1000.0 * i for i in range(20)]


def test_a_damaged_revision_is_a_record_with_its_reason_and_the_others_have_values(
    folder, tmp_path
):
    import shutil

    copy = tmp_path / "suite"
    shutil.copytree(folder, copy)
    shard = copy / "step3000" / "model-00001-of-00002.safetensors"
    shard.write_bytes(b"\xff" * 64)
    done = Sweep(LocalSource(copy), ["rank"], out=tmp_path / "out").run()
    assert not done.quarantined
    bad = done.store.read(metric="unreadable").to_pylist()
    assert [row["step"] for row in bad] == [3000.0]
    assert math.isnan(bad[0]["value"])
    assert "model-00001" in bad[0]["status"]
    assert done.store.read(metric="stable_rank", layers=[0]).num_rows == 47


def test_a_matrix_that_changes_its_shape_is_measured_cold(tmp_path):
    states = dict(zip(revision_names(4), trajectory(4, layers=1), strict=True))
    mlp = "gpt_neox.layers.0.mlp.dense"
    states["step2000"] |= {
        f"{mlp}_h_to_4h.weight": torch.ones(160, 32),
        f"{mlp}_4h_to_h.weight": torch.ones(32, 160),
    }
    done = Sweep(MemorySource(states, CONFIG), {"warmth": Warmth()}, out=tmp_path).run()
    assert done.store.read(metric="warm")["value"].to_pylist() == [0.0, 1.0, 0.0, 0.0]


def test_a_task_that_keeps_killing_its_worker_is_put_aside_and_the_rest_is_done(folder, tmp_path):
    trap = tmp_path / "trap"
    trap.touch()
    log = tmp_path / "log"
    source = LoggedSource(folder, log, 0.0, ("step20000", trap), forever=True)
    done = Sweep(source, ["rank"], out=tmp_path / "out", engine="process", workers=1).run()
    assert reads(log).count("step20000") == 3
    (task, reason), *others = done.quarantined.items()
    assert not others
    assert "step16000..step23000" in task
    assert "SIGKILL" in reason
    assert done.done == 5
    assert [note["reason"] for note in quarantine.listed(tmp_path / "out")] == [reason]
    trap.unlink()
    healed = Sweep(source, ["rank"], out=tmp_path / "out").run()
    assert healed.done == 1
    assert quarantine.listed(tmp_path / "out") == []


@pytest.mark.parametrize("engine", ["serial", "process"])
def test_a_task_that_hangs_is_stopped(engine, tmp_path):
    sweep = Sweep(memory(2), {"stuck": Stuck()}, out=tmp_path, engine=engine, timeout=1.0)
    # A worker that is started afresh has a second for its task, not for loading torch.
    with pytest.raises(JomaError, match="took longer than the 1 s"):
        sweep.run()


def test_revisions_without_a_step_are_left_out_and_named():
    states = dict(zip([*revision_names(3), "main"], trajectory(4), strict=True))
    found = plan(MemorySource(states, CONFIG), ["rank"])
    assert [r.name for r in found.left_out] == ["main"]
    assert found.revisions == 3


def test_a_lone_model_needs_no_step(tmp_path):
    done = Sweep(MemorySource({"main": trajectory(1)[0]}, CONFIG), ["rank"], out=tmp_path).run()
    assert done.store.read(metric="stable_rank").num_rows == 4


def test_a_plan_counts_what_a_sweep_reads(folder, tmp_path):
    source = LocalSource(folder)
    counted = plan(source, ["rank", "coherence"]).total
    done = Sweep(LocalSource(folder), ["rank", "coherence"], out=tmp_path).run()
    needed = 48 * 4 * 2 * 128 * 32 * 4
    assert counted.bytes == needed
    assert counted.tensors == 48 * 8
    header = LocalSource(folder).index("step0").overhead
    assert done.cost.bytes == pytest.approx(needed + 2 * 48 * header, rel=0.02)


def test_large_models_are_cut_into_several_tasks(monkeypatch):
    monkeypatch.setattr(planning, "CHUNK", 20_000)
    found = plan(memory(8), ["rank"])
    assert len(found.tasks) == 4  # 16 kB a matrix: one per task


def test_a_probe_that_watches_needs_a_text():
    with pytest.raises(JomaError, match="--text FILE"):
        plan(memory(2), ["entropy"])


def test_gradients_are_not_in_checkpoints():
    with pytest.raises(JomaError, match="gradients"):
        plan(memory(2), ["gradient_rank"])


def test_keys_are_json_and_name_the_revisions():
    found = plan(memory(2), ["rank"])
    (key,) = found.tasks[0].keys(found.job)
    assert json.loads(key)[-1] == ["step0", "step1000"]


def test_where_nothing_works_the_sweep_says_so(tmp_path):
    class Broken(AbstractWeightProbe):
        need: ClassVar = Need.MLP_IN

        def measure(self, place, tensors, warm=None):
            raise RuntimeError("out of order")

    with pytest.raises(JomaError, match=r"none was done.*out of order"):
        Sweep(memory(20), {"broken": Broken()}, out=tmp_path).run()


@pytest.fixture
def pretrained(tmp_path):
    """A suite as transformers saves one, with a tokeniser of four words."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["[UNK]", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    config = transformers.GPTNeoXConfig(
        vocab_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    for step in (0, 10):
        torch.manual_seed(step)
        model = transformers.GPTNeoXForCausalLM(config)
        model.save_pretrained(tmp_path / "suite" / f"checkpoint-{step}")
        fast.save_pretrained(tmp_path / "suite" / f"checkpoint-{step}")
    return tmp_path / "suite"


TEXT = Text("a b c a b c a b c a b c", length=4, sequences=3)


@pytest.mark.hf
def test_entropy_of_a_text_is_measured_through_transformers(pretrained, tmp_path, capfd):
    capfd.readouterr()
    done = Sweep(str(pretrained), ["entropy", "rank"], out=tmp_path / "out", text=TEXT).run()
    assert capfd.readouterr() == ("", "")
    found = done.store.read(metric="attention_entropy").to_pylist()
    assert {(row["step"], row["layer"]) for row in found} == {(0, 0), (0, 1), (10, 0), (10, 1)}
    assert {row["sequence_length"] for row in found} == {4}
    assert {row["context"] for row in found} == {"probe"}
    assert done.store.read(metric="stable_rank").num_rows == 4


@pytest.mark.hf
def test_a_model_with_weights_missing_is_not_measured(pretrained, tmp_path):
    for path in pretrained.glob("*/model.safetensors"):
        kept = {k: v for k, v in load_file(path).items() if "layers.1.attention" not in k}
        save_file(kept, path, metadata={"format": "pt"})
    done = Sweep(str(pretrained), ["entropy"], out=tmp_path / "out", text=TEXT).run()
    rows = done.store.read().to_pylist()
    assert len(rows) == 2 and all(math.isnan(row["value"]) for row in rows)
    assert all("weights of its model, among them layers.1" in row["status"] for row in rows)

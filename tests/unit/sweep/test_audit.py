"""Planted defects are found, all of them and nothing else; a clean suite is clean."""

import random
import time

import pytest
import torch

from joma.analysis.audit import Defect
from joma.sources.local import LocalSource
from joma.sources.memory import MemorySource
from joma.sweep.audit import audit
from joma.sweep.run import Sweep
from unit.sweep.suites import CONFIG, revision_names, save, shard_of, trajectory

COUNT = 40
LOOKED_AT = "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"


def planted(seed: int) -> tuple[dict[str, dict], set]:
    """A suite with ten defects at random, disjoint revisions; and what should be found.

    Modelled on pythia #83 and #198 (equal neighbours), BLOOM-7b1 (equal and far apart), pythia #206
    (first shard of the last step), #108 (a wrong upload), #203 (weights of another run), OLMo-2
    (missing steps), and on what the issue asks for besides.
    """
    chance = random.Random(seed)
    states = dict(zip(revision_names(COUNT), trajectory(COUNT, seed=seed), strict=True))
    names = list(states)
    last = names[-1]
    stranger, other = (trajectory(1, seed=seed + 100 * k)[0] for k in (1, 2))
    # The second of two equal neighbours is drawn with the first; the last revision is the donor.
    first = chance.choice(range(0, COUNT - 2))
    free = [i for i in range(1, COUNT - 1) if i not in (first, first + 1)]
    a, far, shard, tensor, lost, one, two, nan, dtype, foreign, odd = chance.sample(free, 11)
    expected = set()

    states[names[first + 1]] = dict(states[names[first]])
    expected.add((Defect.DUPLICATE, frozenset({names[first], names[first + 1]})))
    states[names[a]] = dict(states[names[far]])
    expected.add((Defect.DUPLICATE, frozenset({names[a], names[far]})))
    states[names[shard]] |= {
        n: t for n, t in states[last].items() if shard_of(n).startswith("model-00001")
    }
    expected.add((Defect.SHARD, frozenset({names[shard]})))
    moved = LOOKED_AT.format(chance.randrange(4))
    states[names[tensor]][moved] = other[moved]
    expected.add((Defect.TENSOR, frozenset({names[tensor]})))
    states[names[foreign]] = stranger
    expected.add((Defect.REVISION, frozenset({names[foreign]})))
    states[names[one]], states[names[two]] = states[names[two]], states[names[one]]
    expected.add((Defect.ORDER, frozenset({names[one], names[two]})))
    broken = LOOKED_AT.format(chance.randrange(4))
    states[names[nan]][broken] = states[names[nan]][broken].clone()
    states[names[nan]][broken][3, 5] = float("inf")
    expected.add((Defect.NONFINITE, frozenset({names[nan]})))
    half = LOOKED_AT.format(chance.randrange(4))
    states[names[dtype]][half] = states[names[dtype]][half].half()
    expected.add((Defect.MAKE, frozenset({names[dtype]})))
    states["backup of tuesday"] = states[names[odd]]
    expected.add((Defect.NAME, frozenset({"backup of tuesday"})))
    del states[names[lost]]
    expected.add((Defect.MISSING, frozenset()))
    return states, expected


def found(result) -> set:
    return {(f.defect, frozenset(f.revisions)) for f in result.findings}


@pytest.mark.parametrize("seed", range(5))
def test_ten_planted_defects_are_found_and_nothing_else(seed, tmp_path):
    states, expected = planted(seed)
    result = audit(LocalSource(save(tmp_path / "suite", states)))
    assert found(result) == expected
    assert len(result.findings) == len(expected)


@pytest.mark.parametrize("drift", [0.003, 0.03, 0.3])
def test_nothing_is_flagged_in_a_clean_suite(drift):
    states = dict(zip(revision_names(COUNT), trajectory(COUNT, drift=drift), strict=True))
    result = audit(MemorySource(states, CONFIG))
    assert result.findings == ()
    assert result.revisions == COUNT


def test_every_file_is_looked_at_and_the_chance_to_see_one_tensor_is_stated(tmp_path):
    folder = save(
        tmp_path / "suite",
        dict(zip(revision_names(3), trajectory(3, layers=2), strict=True)),
    )
    result = audit(LocalSource(folder), sample=1)
    assert result.tensors == 1  # two layers are in one file
    assert result.coverage == pytest.approx(1 / 9)


def test_a_file_without_a_chosen_tensor_is_looked_at_too():
    """Revisions may be cut into other files than the first one was."""
    from joma.sources.base import FileInfo, Index, TensorInfo
    from joma.sweep.fingerprint import UNCOVERED, spots

    def info(name, file):
        return TensorInfo(name, "F32", (4, 4), file, 0, 64, 64)

    tensors = {"a": info("a", "one"), "b": info("b", "two"), "c": info("c", "two")}
    files = {name: FileInfo(name, 64, None) for name in ("one", "two")}
    chosen = spots(Index("step0", tensors, files), ("a",))
    assert [spot.key for spot in chosen] == ["a", UNCOVERED]
    assert chosen[1].names == ("b",)


def test_a_stranger_at_step_0_is_found():
    """PolyPythias 160m weight-seed 1 and 2 do not descend from their own step0 (pythia #203)."""
    states = dict(zip(revision_names(COUNT), trajectory(COUNT), strict=True))
    states["step0"] = trajectory(1, seed=1)[0]
    result = audit(MemorySource(states, CONFIG))
    assert found(result) == {(Defect.REVISION, frozenset({"step0"}))}


def test_a_frozen_tensor_is_no_duplicate():
    states = dict(zip(revision_names(6), trajectory(6), strict=True))
    for tensors in states.values():
        tensors[LOOKED_AT.format(0)] = torch.ones(128, 32)
    assert audit(MemorySource(states, CONFIG)).findings == ()


def test_an_audit_costs_at_most_a_fifth_more_than_a_sweep(tmp_path):
    """Bytes and CPU of one thread, the least of five interleaved rounds each."""
    state = {n: t.repeat(16, 16) for n, t in trajectory(1)[0].items()}
    states = {f"step{i}": {n: t + 0.01 * i for n, t in state.items()} for i in range(4)}
    source = LocalSource(save(tmp_path / "suite", states))
    spent = {"audit": [], "sweep": []}
    for i in range(5):
        start = time.thread_time()
        looked = audit(source).outcome.cost.bytes
        spent["audit"].append(time.thread_time() - start)
        start = time.thread_time()
        measured = Sweep(source, ["rank"], out=tmp_path / str(i)).run().cost.bytes
        spent["sweep"].append(time.thread_time() - start)
    assert looked <= 1.2 * measured
    assert min(spent["audit"]) <= 1.2 * min(spent["sweep"])


def trained(steps: list[int], *, seed: int, rate: float, warmup: int, embed: int) -> MemorySource:
    """Checkpoints of a real training: AdamW with warm-up and decay on text of a Markov chain."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": embed, "intermediate_size": 4 * embed, "num_hidden_layers": 2}
    config = transformers.GPTNeoXConfig(
        vocab_size=64, num_attention_heads=4, max_position_embeddings=64, **sizes
    )
    states = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.GPTNeoXForCausalLM(config)
        chain = torch.softmax(3 * torch.randn(64, 64), -1)
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
        for step in range(steps[-1] + 1):
            if step in steps:
                weights = model.state_dict().items()
                states[f"step{step}"] = {name: w.half() for name, w in weights}
            tokens = [torch.randint(64, (8,))]
            for _ in range(15):
                tokens.append(torch.multinomial(chain[tokens[-1]], 1)[:, 0])
            batch = torch.stack(tokens, 1)
            for group in optimiser.param_groups:
                warm, left = min(1.0, (step + 1) / warmup), 1 - step / (steps[-1] + 1)
                group["lr"] = rate * warm * max(0.1, left)
            model(input_ids=batch, labels=batch).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return MemorySource(states, CONFIG)


@pytest.mark.hf
def test_nothing_is_flagged_in_a_real_training_saved_at_powers_and_then_evenly():
    steps = [0, 1, 2, 4, 8, 16, 32, 64, *range(80, 240, 10)]
    result = audit(trained(steps, seed=0, rate=3e-3, warmup=10, embed=32), sample=100)
    assert result.findings == ()
    assert result.coverage == 1.0


@pytest.mark.hf
@pytest.mark.slow
@pytest.mark.parametrize(("rate", "warmup"), [(1e-3, 20), (3e-3, 1), (1e-2, 10), (1e-3, 100)])
def test_nothing_is_flagged_in_real_trainings(rate, warmup):
    steps = list(range(0, 801, 20))
    result = audit(trained(steps, seed=1, rate=rate, warmup=warmup, embed=64), sample=100)
    assert result.findings == ()

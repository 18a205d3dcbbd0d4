"""The training loop: the same bits however often it is killed, no row lost and none doubled."""

import importlib.util
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from joma._core.errors import JomaError
from joma.experiments import _checkpoint, _training
from joma.experiments._training import Measurement, ResumeWarning
from joma.metrics import gradient_rank
from joma.records.store import Store

SCRIPT = Path(__file__).with_name("training_worker.py")
_spec = importlib.util.spec_from_file_location("training_worker", SCRIPT)
worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(worker)

KILLS = 5
CASES = ["toy", "lm"]


class Nursery:
    """A process that forks the trainings: a kill costs milliseconds, not the loading of torch."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def train(self, case, folder, *, death=None, kill_at=None, delay=0.0) -> tuple[int, list[int]]:
        """How a training ended (9: killed, 0: it finished), and the steps that it began."""
        hold = None if kill_at is None else kill_at + 1
        self.process.stdin.write(json.dumps([case, str(folder), death, hold]) + "\n")
        self.process.stdin.flush()
        child, begun = None, []
        while True:
            word, number = self.process.stdout.readline().split()
            if word == "child":
                child = int(number)
            elif word == "ended":
                return int(number), begun
            else:
                begun.append(int(number))
            if child is not None and kill_at is not None and len(begun) >= kill_at:
                time.sleep(delay)
                os.kill(child, signal.SIGKILL)
                kill_at = None


@pytest.fixture(scope="module")
def nursery():
    found = Nursery()
    yield found
    found.process.stdin.close()
    found.process.wait(10)
    found.process.stdout.close()


@pytest.fixture(scope="module")
def whole(nursery, tmp_path_factory):
    """Trainings that nobody interrupted: the folder of each case."""
    folders = {}
    for case in CASES:
        folders[case] = tmp_path_factory.mktemp(case)
        assert nursery.train(case, folders[case]) == (0, list(range(worker.STEPS)))
    return folders


def same(one, other) -> bool:
    """Whether two trainings left the same rows, weights and optimiser state, bit for bit."""
    rows = [Store(folder / "store").read().to_pylist() for folder in (one, other)]
    bits = [[{k: _bits(v) for k, v in row.items()} for row in table] for table in rows]
    digests = [(folder / "digest").read_text() for folder in (one, other)]
    return bits[0] == bits[1] and digests[0] == digests[1]


def _bits(value):
    return value.hex() if isinstance(value, float) else value


@pytest.mark.parametrize("case", CASES)
def test_five_kills_at_random_moments_change_no_bit(nursery, whole, tmp_path, case):
    chance, resumed = random.Random(case), []
    for kill_at in (10, *(chance.randint(1, 10) for _ in range(KILLS - 1))):
        ended, begun = nursery.train(
            case, tmp_path, kill_at=kill_at, delay=chance.uniform(0, 0.004)
        )
        assert ended == signal.SIGKILL
        resumed.append(begun[0])
    assert nursery.train(case, tmp_path)[0] == 0
    assert resumed[0] == 0 and resumed == sorted(resumed) and resumed[-1] >= worker.SAVE_EVERY
    assert same(tmp_path, whole[case])


@pytest.mark.parametrize(
    ("case", "place", "after"),
    [
        *(("toy", p, a) for p in ("records", "checkpoint", "rename") for a in (False, True)),
        ("lm", "records", True),
        ("lm", "rename", False),
    ],
)
def test_a_kill_between_records_and_checkpoint_changes_no_bit(
    nursery, whole, tmp_path, case, place, after
):
    for count in (1, 3, 2):
        assert nursery.train(case, tmp_path, death=[place, count, after])[0] == signal.SIGKILL
    assert nursery.train(case, tmp_path)[0] == 0
    assert same(tmp_path, whole[case])
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


@pytest.mark.parametrize("case", CASES)
def test_every_measured_step_is_there_once(whole, case):
    *_, measure, _ = worker.CASES[case]()
    rows = Store(whole[case] / "store").read(metric="loss")
    assert rows["step"].to_pylist() == sorted(measure.at)
    assert rows["context"].unique().to_pylist() == ["probe"]


def test_rows_tell_what_the_model_was_looking_at(whole):
    rows = Store(whole["lm"] / "store").read().to_pylist()
    found = {(r["metric"], r["context"], r["sequence_length"]) for r in rows}
    assert {("attention_entropy", "probe", 12), ("stable_rank", "weights", None)} <= found
    assert {r["tokens"] for r in rows if r["step"] == 10.0} == {480}


@pytest.mark.usefixtures("one_thread")
class TestInOneProcess:
    def test_training_leaves_the_global_random_state_alone(self, tmp_path):
        before = torch.get_rng_state()
        worker.train("lm", tmp_path, steps=3)
        assert torch.equal(torch.get_rng_state(), before)

    def test_measuring_does_not_move_training(self, whole, tmp_path):
        rare = Measurement(at=(), batch=None)
        assert worker.train("lm", tmp_path, measure=rare) == (whole["lm"] / "digest").read_text()
        assert Store(tmp_path / "store").read().num_rows == 0

    def test_another_seed_gives_other_weights(self, whole, tmp_path):
        digest = worker.train("lm", tmp_path, seed=12)
        assert digest != (whole["lm"] / "digest").read_text()

    def test_a_longer_run_goes_on_where_the_shorter_one_ended(self, whole, tmp_path):
        worker.train("lm", tmp_path, steps=20, save_every=6)
        begun = []
        digest = worker.train("lm", tmp_path, before=begun.append)
        (tmp_path / "digest").write_text(digest)
        assert begun[0] == 20
        assert same(tmp_path, whole["lm"])

    def test_a_finished_run_is_loaded_and_not_trained(self, tmp_path):
        digest, begun = worker.train("toy", tmp_path), []
        assert worker.train("toy", tmp_path, before=begun.append) == digest
        assert begun == []

    def test_lost_rows_are_measured_again(self, whole, tmp_path):
        worker.train("toy", tmp_path, steps=20)
        store = Store(tmp_path / "store")
        max(store.parts(), key=lambda part: part.path.name).path.unlink()
        with pytest.warns(ResumeWarning, match="no records of step 1[58]"):
            digest = worker.train("toy", tmp_path)
        (tmp_path / "digest").write_text(digest)
        assert same(tmp_path, whole["toy"])

    def test_a_damaged_checkpoint_is_passed_over(self, whole, tmp_path):
        worker.train("toy", tmp_path, steps=20)
        newest = max((tmp_path / "checkpoints").glob("*.pt"))
        newest.write_bytes(newest.read_bytes()[:-1])
        begun = []
        with pytest.warns(ResumeWarning, match="damaged"):
            digest = worker.train("toy", tmp_path, before=begun.append)
        (tmp_path / "digest").write_text(digest)
        assert begun[0] == 14
        assert same(tmp_path, whole["toy"])

    def test_two_checkpoints_are_kept(self, tmp_path):
        worker.train("toy", tmp_path)
        names = sorted(path.name[:9] for path in (tmp_path / "checkpoints").glob("*.pt"))
        assert names == ["000000056", "000000060"]

    def test_another_number_of_threads_is_told(self, tmp_path):
        worker.train("toy", tmp_path, steps=7)
        torch.set_num_threads(2)
        with pytest.warns(ResumeWarning, match="was at 1 torch threads and goes on with 2"):
            worker.train("toy", tmp_path, steps=8)

    @pytest.mark.parametrize(("name", "value"), [("seed", 12), ("clip", 1.0)])
    def test_another_run_is_not_continued(self, tmp_path, name, value):
        worker.train("toy", tmp_path, steps=7)
        with pytest.raises(JomaError, match="records of another training"):
            worker.train("toy", tmp_path, **{name: value})
        with pytest.raises(JomaError, match=f"its {name} was .*, now it is {value}"):
            worker.train("toy", tmp_path, store=Store(tmp_path / "new"), **{name: value})

    def test_a_run_cannot_be_shortened(self, tmp_path):
        worker.train("toy", tmp_path, steps=7)
        with pytest.raises(JomaError, match="at step 7, past the 6 asked for"):
            worker.train("toy", tmp_path, steps=6)

    def test_a_run_in_training_is_not_trained_twice(self, tmp_path):
        def again(step):
            with pytest.raises(JomaError, match="another process"):
                worker.train("toy", tmp_path)

        worker.train("toy", tmp_path, steps=1, before=again)

    def test_an_undefined_loss_is_recorded_with_its_reason(self, tmp_path):
        measure = Measurement(at=[0], batch=(torch.zeros(1, 20).double(), torch.zeros(1).long()))
        worker.train("toy", tmp_path, steps=0, measure=measure)
        (row,) = Store(tmp_path / "store").read().to_pylist()
        assert math.isnan(row["value"]) and row["status"] == "the loss is not a number"

    @pytest.mark.parametrize(
        "make",
        [
            lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
            lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
            lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
        ],
    )
    def test_optimiser_states_survive(self, tmp_path, monkeypatch, make):
        def other():
            model, _, *rest = worker.lm()
            return model, make(model.parameters()), *rest

        monkeypatch.setitem(worker.CASES, "lm", other)
        worker.train("lm", tmp_path / "cut", steps=5)
        cut, whole = (worker.train("lm", tmp_path / name, steps=9) for name in ("cut", "whole"))
        assert cut == whole

    def test_modules_keep_their_mode(self, tmp_path):
        model, optimiser, batch, measure, _ = worker.lm()
        model.blocks[0].eval()
        modes = [module.training for module in model.modules()]
        _training.train(
            model,
            worker.loss,
            batch,
            optimiser,
            steps=1,
            seed=0,
            run="modes",
            store=Store(tmp_path / "store"),
            folder=tmp_path / "checkpoints",
            measure=measure,
        )
        assert [module.training for module in model.modules()] == modes

    @pytest.mark.parametrize(("patience", "shown"), [(-1.0, True), (60.0, False)])
    def test_a_bar_is_shown_on_a_terminal_once_it_takes_long(
        self, tmp_path, monkeypatch, patience, shown
    ):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True)
        monkeypatch.setattr(_training, "Console", lambda stderr: console)
        monkeypatch.setattr(_training, "PATIENCE", patience)
        worker.train("toy", tmp_path, steps=3)
        assert ("toy/seed 11" in screen.getvalue()) == shown


def test_probes_of_gradients_are_refused():
    with pytest.raises(JomaError, match="needs gradients"):
        Measurement(at=[0], batch=None, probes=(gradient_rank.PROBE,))


def test_a_digest_sees_one_bit():
    one, other = torch.zeros(3), torch.zeros(3)
    other[1] = -0.0
    assert _checkpoint.digest({"w": one}) != _checkpoint.digest({"w": other})
    assert _checkpoint.digest({"w": one}) != _checkpoint.digest({"v": one})
    assert _checkpoint.digest({"step": torch.tensor(1.0)}) == _checkpoint.digest(
        {"step": torch.tensor(1.0)}
    )

"""Sinks for loggers, each read back with the logger's own means. Nothing leaves this machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from joma.monitor.monitor import Monitor
from joma.monitor.sinks import registry
from joma.monitor.sinks.base import Alert
from unit.monitor.training import VOCAB, small

TESTS = Path(__file__).resolve().parents[2]
NAME = "joma/attention_entropy/layer_01"
ALERT = Alert("trouble", "in a sentence", 4, "error")


def trained(out, sink, run="a/b"):
    """Four steps, looked at every other one, and an alert."""
    model = small()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, every=2, out=out, run=run, sinks=[sink]) as monitor:
        for _ in range(4):
            loss = model(torch.arange(24).view(2, 12) % VOCAB).logsumexp(-1).mean()
            loss.backward()
            optimiser.step()
            monitor.step(loss=loss)
        monitor.alert(ALERT)
    return monitor


def test_a_tensorboard_file_holds_points_and_alerts(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monitor = trained(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard" / "a" / "b")).Reload()
    points = {event.step: event.value for event in events.Scalars(NAME)}
    assert sorted(points) == [0, 2, 4]
    assert points[4] == pytest.approx(monitor.metrics()[NAME], rel=1e-6)  # float32 in the file
    (said,) = events.Tensors("joma_alert/trouble/text_summary")
    assert (said.step, said.tensor_proto.string_val[0]) == (4, b"in a sentence")


def test_a_writer_of_the_user_is_left_open(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "mine")) as writer:
        trained(tmp_path, registry.load("tensorboard")(writer))
        writer.add_scalar("after", 1.0, 5)
    assert not (tmp_path / "tensorboard").exists()


def test_trackio_holds_points_and_alerts(tmp_path):
    pytest.importorskip("trackio")
    # A process of its own: trackio settles where it keeps things when it is imported.
    script = (
        "import sys; from pathlib import Path; from unit.monitor.test_sinks import trained, NAME;"
        "trained(Path(sys.argv[1]), 'trackio');"
        "from trackio.sqlite_storage import SQLiteStorage as S;"
        "print([row['step'] for row in S.get_logs('joma', 'a/b') if NAME in row]);"
        "print([(a['title'], a['level'], a['step']) for a in S.get_alerts('joma')])"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    places = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path)}
    environment = os.environ | places | {"PYTHONPATH": str(TESTS)}
    out = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines()[-2:] == ["[0, 2, 4]", "[('trouble', 'error', 4)]"]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """W&B that talks to nobody and reports through its own summary."""
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    import wandb

    return wandb


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb")
def test_in_a_wandb_run_of_the_user_numbers_wait_for_the_users_log(tmp_path, offline, monkeypatch):
    with offline.init(project="mine", dir=tmp_path) as run:
        alerts = []
        monkeypatch.setattr(run, "alert", lambda **words: alerts.append(words))
        run.log({"loss": 1.0}, step=0)
        monitor = trained(tmp_path, "wandb")
        before = run.step
        registry.load("wandb").announce(ALERT)
        run.log({"loss": 2.0}, step=1)
        run.log({}, step=2)
        assert before == 0
        assert run.summary[NAME] == monitor.metrics()[NAME]
        assert run.summary["loss"] == 2.0
    assert [a["title"] for a in alerts] == ["trouble", "trouble"]
    assert alerts[0]["text"] == "Step 4: in a sentence" and alerts[0]["level"] == "ERROR"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb")
def test_without_a_wandb_run_the_sink_has_one_of_its_own(tmp_path, offline):
    trained(tmp_path, "wandb")
    assert offline.run is None
    (file,) = tmp_path.glob("wandb/offline-run-*/run-a-b.wandb")
    assert arrives(NAME.encode(), file)


def arrives(words, file, seconds=60):
    """Whether a file comes to contain some words: W&B writes from a process of its own."""
    end = time.monotonic() + seconds
    while words not in file.read_bytes() and time.monotonic() < end:
        time.sleep(0.1)
    return words in file.read_bytes()


def test_a_sink_whose_package_is_missing_says_what_to_install():
    code = (
        "import sys\n"
        "from joma.monitor.sinks import registry\n"
        "for name in ('tensorboard', 'wandb', 'trackio'):\n"
        "    sys.modules[name] = None\n"
        "    try: registry.load(name)\n"
        "    except ImportError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("tensorboard", "wandb", "trackio"):
        assert f"needs '{name}'. Install it with: pip install 'joma[track]'" in out.stdout

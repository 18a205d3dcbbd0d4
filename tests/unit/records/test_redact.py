"""Secrets do not reach the disk; what merely sounds like one does."""

import json
import string

import pytest
from hypothesis import given, strategies as st

from joma.records import redact
from joma.records.redact import HIDDEN

SECRET = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40)
NAMES = [
    "token",
    "hf_token",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "hub-token",
    "accessToken",
    "api_key",
    "apiKey",
    "OPENAI_API_KEY",
    "WANDB_API_KEY",
    "wandb.api_key",
    "AWS_SECRET_ACCESS_KEY",
    "password",
    "db_password",
    "PASSWD",
    "passphrase",
    "client_secret",
    "clientSecret",
    "credentials",
    "ssh-private-key",
    "authtoken",
    "auth",
    "cookie",
]

FORMS = {
    "flag and value": lambda name, s: ["train", f"--{name}", s],
    "flag and value with a dash": lambda name, s: ["train", f"--{name}", f"-{s}"],
    "login": lambda name, s: ["wandb", "login", s],
    "login with a flag": lambda name, s: ["wandb", "login", "--relogin", f"--{name}", s],
    "flag with =": lambda name, s: ["train", f"--{name}={s}"],
    "setting": lambda name, s: ["train", f"{name}={s}"],
    "added setting": lambda name, s: ["train", f"+env.{name}={s}"],
    "inside a text": lambda name, s: ["bash", "-c", f"export {name}={s} && run"],
    "in a query": lambda name, s: ["curl", f"https://example.org/?a=1&{name}={s}&b=2"],
    "first in a query": lambda name, s: ["curl", f"https://example.org/?{name}={s}"],
    "after a colon": lambda name, s: ["run", f"note:{name}={s}"],
    "in JSON": lambda name, s: ["train", json.dumps({"a": 1, name: s})],
    "in quotes": lambda name, s: ["train", f"{name}: 'not {s}'"],
}
SETTINGS = {
    "flat": lambda name, s: {name: s},
    "nested": lambda name, s: {"a": [{"b": {name: s}}]},
    "list": lambda name, s: {name: [s, s]},
    "mapping": lambda name, s: {name: {"user": "me", "x": s}},
    "text": lambda name, s: {"note": f"ran with {name}={s}"},
    "command": lambda name, s: {"command": [f"--{name}", s]},
}
LOOKS = {
    "hugging face": "hf_{}",
    "openai": "sk-{}",
    "openai project": "sk-proj-{}",
    "github": "ghp_{}",
    "github fine": "github_pat_{}",
    "gitlab": "glpat-{}",
    "slack": "xoxb-{}",
    "wandb": "wandb_v1_{}",
    "url": "https://me:{}@example.org/x",
    "url without user": "https://{}@example.org",
    "postgres": "postgresql+psycopg://user:p@{}@db:5432/name",
    "bearer": "Authorization: Bearer {}",
    "header": "authorization: token {}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.{}.x",
}


@given(SECRET, st.sampled_from(NAMES), st.sampled_from(sorted(FORMS)))
def test_a_named_secret_is_gone_from_a_command_line(secret, name, form):
    words = FORMS[form](name, secret)
    clean = redact.arguments(words)
    assert secret not in json.dumps(clean)
    assert HIDDEN in json.dumps(clean)
    assert clean[0] == words[0]


@given(SECRET, st.sampled_from(NAMES), st.sampled_from(sorted(SETTINGS)))
def test_a_named_secret_is_gone_from_settings(secret, name, form):
    assert secret not in json.dumps(redact.settings(SETTINGS[form](name, secret)))


@given(SECRET, st.sampled_from(sorted(LOOKS)))
def test_a_secret_is_known_by_its_look(secret, look):
    text = LOOKS[look].format(secret + "A1")
    for clean in (
        redact.text(text),
        redact.arguments(["run", text]),
        redact.settings({"x": {"y": [text, 1]}, text: 0}),
    ):
        assert secret not in json.dumps(clean)


@pytest.mark.parametrize(
    "setting",
    [
        {"max_tokens": 2048, "tokens": "300B", "num_tokens": 10.0},
        {"eos_token": "</s>", "bos_token": "<s>", "pad_token": "<pad>", "mask_token": "[MASK]"},
        {"eos_token_id": 50256, "tokenizer": "EleutherAI/pythia-160m", "token": True},
        {"cache_key": "abc", "key": "value", "keys": ["a"], "key_dim": 64},
        {"author": "me", "password": None, "token": "", "secret": False},
        {"revision": "9a6a07d3a4b0c4d1e3a8f2b5c6d7e8f901234567"},
        {"url": "https://huggingface.co/EleutherAI/pythia-160m", "mail": "me@example.org"},
        {"package": "sk-learn", "model": "hf_transformers", "task-name": "task-1234567890"},
        {"command": ["joma", "run", "fig4", "--steps", "100", "--lr=1e-3", "a=b", "-v"]},
    ],
)
def test_what_is_no_secret_stays(setting):
    assert redact.settings(setting) == setting


def test_a_password_that_is_a_number_is_hidden():
    assert redact.settings({"password": 1234, "token": 50256}) == {
        "password": HIDDEN,
        "token": 50256,
    }


def test_a_flag_without_a_value_hides_nothing():
    words = ["train", "--use-auth-token", "--steps", "10"]
    assert redact.arguments(words) == words


@given(st.text())
def test_redaction_is_done_after_one_pass(line):
    once = redact.text(line)
    assert redact.text(once) == once

r"""Secrets taken out of texts and settings before they are written down.

By name (`--api-key X`, `{"password": "X"}`, `HF_TOKEN=X`) and by look (`hf_…`, `sk-…`, a URL
with a password in it). In this field most tokens are no secrets: `max_tokens=2048` and
`eos_token="</s>"` stay as they are. A bare commit hash and a bare 40-digit key look alike,
so the latter goes by its name only.
"""

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "[redacted]"

_STRONG = re.compile(
    r"(password|passwd|passphrase|passcode|secret|credential|apikey|accesskey|authorization"
    r"|cookie)s?$|^pwd$"
)
# What makes a key a secret one: api_key, and not cache_key.
_KEYS = re.compile(
    r"access|account|api|auth|deploy|encryption|hub|license|master|private|service|shared|signing"
    r"|ssh|storage|wandb"
)
# What makes a token a word: eos_token, and not hf_token.
_SPECIAL = re.compile(
    r"additional|audio|begin|bos|cls|class|end|eos|first|image|last|mask|next|pad|prefix|query|sep"
    r"|special|start|stop|suffix|unk|unknown|video|vocab"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

_FLAG = re.compile(r"-[A-Za-z]|--[A-Za-z].*")
_NAME = re.compile(r"([A-Za-z_][\w.-]*)[\"']?\s*[:=]\s*")
_VALUE = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[^\s&]+")
_LOOKS = {
    re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s]+@", re.IGNORECASE): rf"\1{HIDDEN}@",
    re.compile(
        r"(\bauthorization[\"']?\s*[:=]\s*[\"']?)(?:[a-z]+\s+)?[^\s\"']+", re.IGNORECASE
    ): rf"\1{HIDDEN}",
    re.compile(r"(\bbearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE): rf"\1{HIDDEN}",
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END|\Z)", re.DOTALL): HIDDEN,
    re.compile(
        r"(?<![A-Za-z0-9])("
        r"hf_(?=\w*[A-Z0-9])\w{8,}|[srp]k[-_](?:[\w-]{16,}|(?=[\w-]*\d)[\w-]{8,})"
        r"|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{8,}"
        r"|A[KS]IA[0-9A-Z]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
        r"|wandb_v\d_\w+|npm_\w{16,}|pypi-[\w-]{16,}"
        r")"
    ): HIDDEN,
}


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    Example:
        >>> [is_secret(n) for n in ("HF_TOKEN", "wandb.apiKey", "max_tokens", "eos_token")]
        [True, True, False, False]
    """
    words = [w.lower() for w in _WORD.findall(name)]
    if not words:
        return False
    before, last = (words[-2] if len(words) > 1 else ""), words[-1]
    if any(_STRONG.search(w) for w in words) or last == "auth":
        return True
    if last == "key":
        return bool(_KEYS.fullmatch(before))
    return last.endswith("token") and not _SPECIAL.fullmatch(before)


def text(line: str) -> str:
    """A text without the secrets in it.

    Example:
        >>> text("curl https://me:pw@example.org/?token=abc&n=3")
        'curl https://[redacted]@example.org/?token=[redacted]&n=3'
    """
    for look, instead in _LOOKS.items():
        line = look.sub(instead, line)
    clean, done = "", 0
    for name in _NAME.finditer(line):
        value = _VALUE.match(line, name.end())
        if value and name.start() >= done and is_secret(name[1]):
            clean += line[done : name.end()] + HIDDEN
            done = value.end()
    return clean + line[done:]


def arguments(words: Sequence[str]) -> list[str]:
    """A command line without its secrets: `--token X` hides X, `--token=X` all after the sign.

    The word after `login` is hidden too: it is where `wandb login` takes its key.

    Example:
        >>> arguments(["train", "--hf-token", "abc", "--steps", "10"])
        ['train', '--hf-token', '[redacted]', '--steps', '10']
    """
    clean, before = [], ""
    for word in words:
        name, sign, _ = word.partition("=")
        awaited = before == "login" or (before.startswith("-") and is_secret(before))
        if awaited and not _FLAG.fullmatch(word):
            clean.append(HIDDEN)
        elif sign and is_secret(name):
            clean.append(f"{name}={HIDDEN}")
        else:
            clean.append(text(word))
        before = "" if sign else word
    return clean


def settings(value: Any, name: str = "") -> Any:
    """JSON-like settings without their secrets, whatever they are nested in."""
    if isinstance(value, dict):
        if name and is_secret(name):
            return HIDDEN
        return {text(k): settings(v, k) for k, v in value.items()}
    if value is None or isinstance(value, bool) or value == "":
        return value
    if name and is_secret(name) and not _counts(value, name):
        return HIDDEN
    if isinstance(value, list):
        if all(isinstance(v, str) for v in value):
            return arguments(value)
        return [settings(v) for v in value]
    return text(value) if isinstance(value, str) else value


def _counts(value: Any, name: str) -> bool:
    """`token: 50256` is an id, `password: 1234` is not."""
    return isinstance(value, int | float) and "token" in name.lower()

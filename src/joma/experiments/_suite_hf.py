"""Edge file for joma[hf]: a suite of our own, made with the tools that public suites are made with.

The model is transformers' GPT-NeoX, and every revision is a directory as on the hub, with config,
tokeniser and sharded weights: safetensors at even places, `.bin` at odd ones.
"""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from joma._core.extras import extra
from joma.data.text import UNKNOWN, Vocabulary, batchify, vocabulary, window, window_count
from joma.experiments._suite import SUITE, Suite, content
from joma.experiments._training import Measurement, train
from joma.records.store import Store
from joma.sweep.text import quiet

with extra("hf", packages=("transformers", "tokenizers"), purpose="Making a suite"):
    from huggingface_hub import save_torch_state_dict
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

CLIP = 1.0
WINDOWS = 8  # of the validation text, for the loss


def written(suite: Suite, seed: int, folder: Path, work: Path) -> pa.Table:
    """Train a suite into `folder`, one directory `stepN` per revision; gives its losses.

    `work` keeps what is needed to go on after an interruption; revisions that are there stay.
    """
    texts = {split: content(split).lower().split() for split in ("train", "valid")}
    known = vocabulary(texts["train"], suite.vocab)
    rows, held = (batchify(known.encode(words), suite.batch) for words in texts.values())
    count = window_count(rows, suite.length) - 1  # the last one may be short
    model = made(suite, seed)
    words = tokeniser(known, suite.length)

    def keep(step: int) -> None:
        if step in suite.revisions:
            kind = ("safetensors", "bin")[suite.revisions.index(step) % 2]
            _save(model, words, folder / f"step{step}", kind, suite.shard)

    store = Store(work / "records")
    train(
        model,
        loss,
        lambda step: window(rows, step % count, suite.length),
        torch.optim.AdamW(model.parameters(), lr=suite.learning_rate),
        steps=suite.steps,
        seed=seed,
        run=SUITE,
        store=store,
        folder=work / "checkpoints",
        measure=Measurement(
            at=suite.revisions,
            batch=tuple(window(held, i, suite.length) for i in range(WINDOWS)),
            tokens=suite.batch * suite.length,
            sequence_length=suite.length,
        ),
        save_every=suite.every,
        clip=CLIP,
        before=keep,
    )
    keep(suite.steps)
    return store.read()


def made(suite: Suite, seed: int) -> nn.Module:
    """The untrained model."""
    config = GPTNeoXConfig(
        vocab_size=suite.vocab,
        hidden_size=suite.embed,
        num_hidden_layers=suite.layers,
        num_attention_heads=suite.heads,
        intermediate_size=suite.hidden,
        max_position_embeddings=suite.length,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = GPTNeoXForCausalLM(config)  # type: ignore[no-untyped-call]
    return model


def tokeniser(known: Vocabulary, length: int) -> Any:
    """Words in lower case, parted by white space, as the model is trained on them."""
    words = Tokenizer(WordLevel(known.ids, unk_token=UNKNOWN))
    words.normalizer = Lowercase()
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, unk_token=UNKNOWN, model_max_length=length
    )


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy per token in nats, of one window or of several."""
    windows = [batch] if isinstance(batch[0], Tensor) else batch
    parts = [
        F.cross_entropy(model(input_ids=w.inputs).logits.flatten(0, 1), w.targets.flatten())
        for w in windows
    ]
    return torch.stack(parts).mean()


def _save(model: Any, words: Any, folder: Path, kind: str, shard: int) -> None:
    """Write one revision whole or not at all."""
    if folder.is_dir():
        return
    aside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    with quiet():
        model.save_pretrained(aside, max_shard_size=shard)
        if kind == "bin":
            _convert(aside, shard)
        words.save_pretrained(aside)
    aside.rename(folder)


def _convert(folder: Path, shard: int) -> None:
    """To `.bin`, which transformers 5 reads but no longer writes; the hub's client does."""
    state: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_torch_state_dict(state, folder, max_shard_size=shard, safe_serialization=False)

"""One training by a Trainer, bare or watched, and the digest of what came out.

    python hosted_worker.py transformers|lightning

A process of its own, because the runtime type checks of the tests draw from Python's generator.
"""

import hashlib
import json
import logging
import sys
import tempfile
import warnings

import torch
import torch.nn.functional as F

from joma.models.language import LanguageConfig, LanguageModel
from joma.monitor.attach import watch

VOCAB, LENGTH = 40, 36


def rows(count: int = 64) -> torch.Tensor:
    return torch.randint(VOCAB, (count, LENGTH), generator=torch.Generator().manual_seed(7))


def llama(**more):
    import transformers

    torch.manual_seed(5)
    words = {"vocab_size": VOCAB, "max_position_embeddings": 64, "intermediate_size": 24}
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**(words | sizes | {"attention_dropout": 0.1} | more))
    return transformers.LlamaForCausalLM(config)


def hf_trainer(out, model=None, **more):
    import transformers

    settings = {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "logging_steps": 4,
        "save_steps": 6,
        "warmup_steps": 3,
        "learning_rate": 1e-3,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    arguments = transformers.TrainingArguments(str(out), **(settings | more))
    data = [{"input_ids": row, "labels": row} for row in rows()]
    return transformers.Trainer(model or llama(), arguments, train_dataset=data)


def transformers_run(watched: bool) -> dict:
    with tempfile.TemporaryDirectory() as out:
        trainer = hf_trainer(out)
        if watched:
            watch(trainer, every=3)
        end = trainer.train()
        history = [
            {k: v for k, v in entry.items() if "joma" not in k and "second" not in k}
            for entry in trainer.state.log_history
        ]
    for entry in history:
        entry.pop("train_runtime", None)
    return {
        "digest": digest(trainer.model, trainer.optimizer.state_dict()),
        "history": history,
        "handed_on": sorted(end.metrics),
    }


def lit():
    import lightning.pytorch as pl

    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            sizes = {"layers": 2, "embed": 16, "hidden": 24, "num_heads": 2, "dropout": 0.2}
            self.net = LanguageModel(LanguageConfig(vocab=VOCAB, **sizes), seed=3)

        def training_step(self, batch, _):
            out = self.net(batch[:, :-1])
            loss = F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            optimiser = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimiser], [torch.optim.lr_scheduler.LinearLR(optimiser)]

    return Lit()


def pl_trainer(out, logger=False, **more):
    import lightning.pytorch as pl

    settings = {
        "max_steps": 8,
        "accelerator": "cpu",
        "devices": 1,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 1.0,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 4,
    }
    return pl.Trainer(default_root_dir=str(out), logger=logger, **(settings | more))


def lightning_run(watched: bool) -> dict:
    torch.manual_seed(1)
    module = lit()
    with tempfile.TemporaryDirectory() as out:
        trainer = pl_trainer(out, enable_checkpointing=False)
        if watched:
            watch(trainer, every=3)
        trainer.fit(module, torch.utils.data.DataLoader(rows(), batch_size=4, shuffle=True))
        state = trainer.optimizers[0].state_dict()
        return {"digest": digest(module, state), "history": [float(trainer.logged_metrics["loss"])]}


def digest(model, optimiser) -> str:
    """SHA-256 of weights, optimiser state and the random state."""
    parts = [*model.state_dict().values(), torch.get_rng_state()]
    for state in optimiser["state"].values():
        parts += [torch.as_tensor(state[name]) for name in sorted(state)]
    found = hashlib.sha256()
    for tensor in parts:
        found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    once = {"transformers": transformers_run, "lightning": lightning_run}[sys.argv[1]]
    print(json.dumps({"bare": once(False), "watched": once(True)}))

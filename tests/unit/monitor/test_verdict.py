"""The judge: the rule of the diagnosis, asked after each observation."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from joma.analysis.calibration import CALIBRATION
from joma.analysis.diagnosis import diagnosed
from joma.analysis.facts import Facts
from joma.analysis.standing import Seen, advanced
from joma.monitor.facts import facts_of_model
from joma.monitor.monitor import Monitor
from joma.monitor.verdict import Judge, judge
from joma.records.store import Store
from unit.monitor.training import VOCAB, hf, small

NARROW = CALIBRATION.share / 2
"""Far past the limit, as a share of step 0."""


def numbers(*entropies, logit=1.0, loss=None, metric="attention_entropy"):
    found = {f"joma/{metric}/layer_{i:02d}": e for i, e in enumerate(entropies)}
    found |= {f"joma/max_logit/layer_{i:02d}": logit for i in range(len(entropies))}
    return found if loss is None else found | {"loss": loss}


def collapsed(rule):
    """Layer 1 is narrow from step 4 on, and the loss gains nothing: the alerts of each step."""
    found = [rule(0, numbers(2.5, 2.5))]
    for step in (4, 8, 16):
        found.append(rule(step, numbers(2.5, 2.5 * NARROW, loss=6.0)))
    return found


def test_a_layer_that_collapses_is_named_once():
    rule = judge()
    alerts = [alert for step in collapsed(rule) for alert in step]
    assert [(a.title, a.layer, a.step) for a in alerts] == [("attention collapsing", 1, 8)]
    assert "lower peak learning rate" in alerts[0].text
    assert str(rule).startswith("attention collapsing (last look at step 16): Layer 1")


def test_a_layer_that_recovers_and_collapses_again_is_named_again():
    rule = judge()
    collapsed(rule)
    assert not rule(20, numbers(2.5, 2.5, loss=6.0))
    assert str(rule).startswith("no warning")
    later = [a.step for s in (24, 64, 65) for a in rule(s, numbers(2.5, 2.5 * NARROW, loss=6.0))]
    assert later == [64]


def test_it_says_what_the_diagnosis_says():
    rule = judge()
    collapsed(rule)
    standing = None
    for step, share in ((0, 1.0), (4, NARROW), (8, NARROW), (16, NARROW)):
        entropy = np.array([2.5, 2.5 * share])
        seen = Seen(step=step, entropy=entropy, logit=np.array([1.0, 1.0]), loss=6.0)
        standing = advanced(standing, seen)
    assert rule.diagnoses == diagnosed("", standing)


def test_entropies_without_sinks_come_first_if_they_are_there():
    rule = judge()
    for step in (0, 4, 8, 16):
        free = numbers(2.5, metric="attention_entropy_sink_free", loss=6.0)
        rule(step, numbers(2.5 if step == 0 else 0.01, loss=6.0) | free)
    assert str(rule).startswith("no warning")


def test_without_a_loss_it_cannot_say():
    rule = judge()
    rule(0, numbers(2.5))
    rule(4, numbers(2.5))
    assert str(rule) == "cannot say: no loss was given to see whether the model learns."
    assert str(judge()) == "cannot say: no attention entropy was observed."


def test_the_first_loss_tells_a_trained_model_and_a_later_one_does_not():
    answers = []
    for first in (math.nan, 1.0, math.log(1000)):
        rule = Judge(Facts(vocabulary=1000))
        rule(0, numbers(2.5))
        rule.hear(first)
        rule(100, numbers(2.5, loss=0.9))
        answers.append(str(rule))
    assert [a.partition(" (")[0] for a in answers] == ["no warning", "cannot say", "no warning"]
    assert "Was it trained before?" in answers[1]


def test_an_untrained_model_with_large_logits_is_not_alarming_by_itself():
    rule = judge()
    rule(0, numbers(2.5, logit=2 * CALIBRATION.logit))
    rule.hear(7.0)
    assert not rule(1, numbers(2.5, logit=2 * CALIBRATION.logit, loss=6.0))


def test_a_layer_that_was_not_read_this_time_is_not_judged_by_it():
    rule = judge()
    rule(0, numbers(2.5, 2.5))
    assert not rule(4, numbers(2.5, loss=6.0))
    assert str(rule).startswith("no warning")


def test_what_an_earlier_process_saw_counts(tmp_path):
    model = small()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, every=1, out=tmp_path, run="a") as monitor:
        for _ in range(3):
            loss = model(torch.arange(70).view(2, 35) % VOCAB).logsumexp(-1).mean()
            loss.backward()
            optimiser.step()
            monitor.step(loss=loss)
    last = monitor.metrics()
    rule = judge()
    rule.recall(tmp_path, "a")
    rule(4, last | {"loss": 3.0})
    assert str(rule).startswith("no warning (last look at step 4)")
    bare = judge()
    bare(4, last | {"loss": 3.0})
    assert "Records begin at step 4" in str(bare)
    assert Store(tmp_path).runs() == ["a"]


class Normed(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.q_norm = norm


def test_facts_of_a_model_of_ones_own_are_read_off_its_names():
    assert facts_of_model(small()) == Facts()
    assert facts_of_model(Normed(nn.LayerNorm(4))).qk_norm
    assert not facts_of_model(Normed(nn.Identity())).qk_norm


@pytest.mark.hf
@pytest.mark.parametrize(
    ("family", "more", "fact"),
    [
        ("Llama", {}, None),
        ("Qwen3", {"head_dim": 8}, "qk_norm"),
        ("Gemma2", {"head_dim": 8, "num_key_value_heads": 1}, "softcap"),
        ("GptOss", {"num_local_experts": 2, "num_key_value_heads": 1, "head_dim": 8}, "sinks"),
    ],
)
def test_facts_of_models_of_transformers(family, more, fact):
    found = facts_of_model(hf(family, **more))
    special = [n for n in ("qk_norm", "softcap", "sinks", "fine_tuned") if getattr(found, n)]
    assert special == ([] if fact is None else [fact])
    assert found.vocabulary == VOCAB


@pytest.mark.hf
def test_a_model_that_was_loaded_or_adapted_counts_as_fine_tuned(tmp_path):
    import peft

    model = hf("Llama")
    model.save_pretrained(tmp_path)
    assert facts_of_model(type(model).from_pretrained(tmp_path)).fine_tuned
    again = type(model)(type(model.config).from_pretrained(tmp_path))
    assert not facts_of_model(again).fine_tuned  # of a checkpoint, only the settings were taken
    lora = peft.get_peft_model(again, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    assert facts_of_model(lora).fine_tuned

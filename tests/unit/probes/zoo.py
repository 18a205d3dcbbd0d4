"""Tiny models of every family, from explicit configurations, and slow, obvious twins."""

import copy
import logging
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from joma.probes.base import AbstractStreamProbe, AttentionCall, Need
from joma.probes.slots import AbstractReceiver

EMBED, HEADS, VOCABULARY = 32, 4, 64

_COMMON = {"hidden_size": EMBED, "num_hidden_layers": 2, "num_attention_heads": HEADS}
_WORDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TEXT = _COMMON | _WORDS | {"max_position_embeddings": 64}
_WIDE = _TEXT | {"intermediate_size": 64}
_OPT = _TEXT | {"ffn_dim": 64, "word_embed_proj_dim": EMBED}
_LLAMA = _TEXT | {"num_key_value_heads": 2, "intermediate_size": 48}
_WINDOW = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2}
_GPT = {"n_embd": EMBED, "n_layer": 2, "n_head": HEADS} | _WORDS
_T5 = {"d_model": EMBED, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": HEADS} | _WORDS
_IMAGE = _COMMON | {"image_size": 16, "patch_size": 4}
_NEO = {"hidden_size": EMBED, "num_layers": 2, "num_heads": HEADS, "window_size": 4} | _WORDS
_BLOOM = {"hidden_size": EMBED, "n_layer": 2, "n_head": HEADS} | _WORDS
_MPT = {"d_model": EMBED, "n_layers": 2, "n_heads": HEADS, "max_seq_len": 64} | _WORDS
_DISTIL = {"dim": EMBED, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 64} | _WORDS

# name -> (family file, model class, configuration class, its arguments)
ZOO: dict[str, tuple[str, str, str, dict]] = {
    "gpt_neox": ("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _WIDE),
    "opt": ("opt", "OPTForCausalLM", "OPTConfig", _OPT),
    "gpt2": ("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT),
    "llama": ("llama", "LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "mistral": ("llama", "MistralForCausalLM", "MistralConfig", _LLAMA | {"sliding_window": 5}),
    "qwen2": ("llama", "Qwen2ForCausalLM", "Qwen2Config", _LLAMA),
    "qwen3": ("llama", "Qwen3ForCausalLM", "Qwen3Config", _LLAMA | {"head_dim": 16}),
    "olmo": ("llama", "OlmoForCausalLM", "OlmoConfig", _LLAMA),
    "olmo2": ("llama", "Olmo2ForCausalLM", "Olmo2Config", _LLAMA),
    "olmo3": ("llama", "Olmo3ForCausalLM", "Olmo3Config", _LLAMA | _WINDOW),
    "gemma": ("llama", "GemmaForCausalLM", "GemmaConfig", _LLAMA | {"head_dim": 16}),
    "gemma2": ("llama", "Gemma2ForCausalLM", "Gemma2Config", _LLAMA | _WINDOW),
    "gemma3": ("llama", "Gemma3ForCausalLM", "Gemma3TextConfig", _LLAMA | _WINDOW),
    "smollm3": ("llama", "SmolLM3ForCausalLM", "SmolLM3Config", _LLAMA),
    "stablelm": ("llama", "StableLmForCausalLM", "StableLmConfig", _LLAMA),
    "granite": ("llama", "GraniteForCausalLM", "GraniteConfig", _LLAMA),
    "cohere": ("cohere", "CohereForCausalLM", "CohereConfig", _LLAMA),
    "apertus": ("apertus", "ApertusForCausalLM", "ApertusConfig", _LLAMA | _ROPE),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", _LLAMA),
    "phi": ("phi", "PhiForCausalLM", "PhiConfig", _LLAMA),
    "phi3": ("phi3", "Phi3ForCausalLM", "Phi3Config", _LLAMA),
    "mixtral": ("mixtral", "MixtralForCausalLM", "MixtralConfig", _LLAMA | _LOCAL),
    "qwen3_moe": (
        "mixtral",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        _LLAMA | _MOE | {"moe_intermediate_size": 24, "mlp_only_layers": [0]},
    ),
    "qwen2_moe": (
        "mixtral",
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        _LLAMA | _MOE | {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
    ),
    "olmoe": ("mixtral", "OlmoeForCausalLM", "OlmoeConfig", _LLAMA | _MOE),
    "gpt_oss": (
        "gpt_oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        _LLAMA | _WINDOW | _ROPE | _LOCAL | {"head_dim": 8},
    ),
    "bert": ("bert", "BertModel", "BertConfig", _WIDE),
    "roberta": ("bert", "RobertaForMaskedLM", "RobertaConfig", _WIDE),
    "distilbert": ("distilbert", "DistilBertForMaskedLM", "DistilBertConfig", _DISTIL),
    "modernbert": (
        "modernbert",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        _TEXT | {"intermediate_size": 48, "cls_token_id": 3, "sep_token_id": 4},
    ),
    "vit": ("vit", "ViTModel", "ViTConfig", _IMAGE | {"intermediate_size": 64}),
    "dinov2": ("dinov2", "Dinov2Model", "Dinov2Config", _IMAGE | {"mlp_ratio": 2}),
    "dinov2_glu": ("dinov2", "Dinov2Model", "Dinov2Config", _IMAGE | {"use_swiglu_ffn": True}),
    "t5": ("t5", "T5ForConditionalGeneration", "T5Config", _T5),
    "t5_gated": (
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        _T5 | {"feed_forward_proj": "gated-gelu"},
    ),
    "bloom": ("bloom", "BloomForCausalLM", "BloomConfig", _BLOOM),
    "falcon": ("falcon", "FalconForCausalLM", "FalconConfig", _TEXT | {"multi_query": True}),
    "falcon_alibi": (
        "falcon",
        "FalconForCausalLM",
        "FalconConfig",
        # Its sdpa and eager paths add ALiBi differently (transformers 5.22): judge eager by eager.
        _TEXT | {"multi_query": False, "alibi": True, "bias": True, "attn_implementation": "eager"},
    ),
    "falcon_new": (
        "falcon",
        "FalconForCausalLM",
        "FalconConfig",
        _TEXT | {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "gptj": ("gptj", "GPTJForCausalLM", "GPTJConfig", _GPT | {"rotary_dim": 4}),
    "gpt_neo": (
        "gpt_neo",
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        _NEO | {"max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]]},
    ),
    "mpt": ("mpt", "MptForCausalLM", "MptConfig", _MPT),
    "codegen": ("codegen", "CodeGenForCausalLM", "CodeGenConfig", _GPT | {"rotary_dim": 4}),
}
OUTSIDE_THE_INTERFACE = {"bloom", "falcon", "gptj", "gpt_neo", "mpt", "codegen"}
BIDIRECTIONAL = {"bert", "roberta", "distilbert", "modernbert", "vit", "dinov2", "dinov2_glu"}


def build(name: str, implementation: str | None = None, **more) -> nn.Module:
    """A tiny model with weights large enough that attention is far from uniform."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    _, model_class, config_class, arguments = ZOO[name]
    config = getattr(transformers, config_class)(**(arguments | more))
    if implementation is not None:
        config._attn_implementation = implementation
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, model_class)(config)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.data.mul_(5)
            else:  # biases and norms that are not 0 and 1, so that forgetting one shows
                parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def batch(name: str, padding: int = 3) -> dict[str, Tensor]:
    """Two rows; the second starts with padding."""
    if ZOO[name][0] in ("vit", "dinov2"):
        return {"pixel_values": torch.linspace(-2, 2, 2 * 3 * 16 * 16).sin().view(2, 3, 16, 16)}
    tokens = (torch.arange(20) * 7 + 3).view(2, 10) % VOCABULARY
    seen = torch.ones_like(tokens)
    seen[1, :padding] = 0
    inputs = {"input_ids": tokens, "attention_mask": seen}
    if ZOO[name][0] == "t5":
        inputs |= {"decoder_input_ids": tokens.flip(1)[:, :7]}
    return inputs


def eager_twin(model: nn.Module) -> nn.Module:
    """The same weights in a model that was built to write its attention out."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        twin = type(model)(config)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def eager_attentions(model: nn.Module, inputs: dict[str, Tensor]) -> dict[tuple, Tensor]:
    """(layer, site) -> attention probabilities, as transformers itself returns them."""
    with torch.no_grad():
        output = eager_twin(model)(**inputs, output_attentions=True)
    if "decoder_attentions" not in output:
        return {(layer, None): p for layer, p in enumerate(output.attentions)}
    towers = {
        "encoder.self": output.encoder_attentions,
        "decoder.self": output.decoder_attentions,
        "decoder.cross": output.cross_attentions,
    }
    return {(n, site): p for site, layers in towers.items() for n, p in enumerate(layers)}


def entropy(probabilities: Tensor) -> Tensor:
    """Of each row, in nats. What is missing from 1 is the mass of a learned sink."""
    sink = (1 - probabilities.double().sum(-1, keepdim=True)).clamp(min=0)
    sink = sink.where(sink > 1e-5, 0.0)
    return torch.special.entr(torch.cat([probabilities.double(), sink], -1)).sum(-1)


class Recorder(AbstractReceiver):
    """Keeps the first call of each place, which nothing outside a test may do."""

    def __init__(self):
        self.calls = {}

    def receive(self, place, seen):
        self.calls.setdefault(place, seen)

    def note(self, place, problem):
        raise problem

    def compare(self, place, value, output):
        pass


class DenseEntropy(AbstractStreamProbe):
    """Mean entropy per head by the whole attention matrix: the slow, obvious judge of a call."""

    need: ClassVar = Need.ATTENTION

    def observe(self, seen: AttentionCall):
        rows = entropy(self.probabilities(seen))
        counted = ~rows.isnan()
        return {"nats": rows.nan_to_num().sum((0, 2)), "rows": counted.sum((0, 2)).double()}

    @staticmethod
    def probabilities(call: AttentionCall) -> Tensor:
        """One query at a time, one key at a time."""
        batch, heads, queries, _ = call.query.shape
        keys, shared = call.key.shape[2], heads // call.key.shape[1]
        scores = torch.full((batch, heads, queries, keys), -torch.inf, dtype=torch.float64)
        documents = [] if call.cu_seqlens is None else call.cu_seqlens.tolist()
        for q in range(queries):
            at = q + keys - queries
            for k in range(keys):
                if call.causal and (k > at or (call.window and k <= at - call.window)):
                    continue
                if documents and sum(b <= at for b in documents) != sum(b <= k for b in documents):
                    continue
                key = call.key[:, :, k].repeat_interleave(shared, 1)
                score = call.scale * (call.query[:, :, q].double() * key.double()).sum(-1)
                if call.softcap is not None:
                    score = call.softcap * (score / call.softcap).tanh()
                if call.bias is not None:
                    bias = call.bias.expand(batch, heads, queries, keys)
                    score = score + bias[:, :, q, k]
                if call.mask is not None:
                    hidden = ~call.mask.expand(batch, heads, queries, keys)[:, :, q, k]
                    score = score.masked_fill(hidden, -torch.inf)
                scores[:, :, q, k] = score
        if call.sinks is not None:
            sinks = call.sinks.double()[None, :, None, None].expand(batch, heads, queries, 1)
            seen = scores.isfinite().any(-1, keepdim=True)
            return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1].where(seen, torch.nan)
        return scores.softmax(-1)

    def readings(self, place, sums):
        for head, value in enumerate((sums["nats"] / sums["rows"]).tolist()):
            yield place.reading("entropy", value, head=head)

"""Which family a set of tensor names is, from live models and from published files."""

import numpy as np
import pytest

from joma.architectures.base import (
    Located,
    QuantisedWeightsError,
    UnknownArchitectureError,
    find,
    locate,
    refuse_codes,
    split_heads,
)

D, H, V = 8, 32, 50


def pythia(prefix="gpt_neox."):
    layers = {
        "attention.query_key_value.weight": (3 * D, D),
        "attention.query_key_value.bias": (3 * D,),
        "attention.dense.weight": (D, D),
        "mlp.dense_h_to_4h.weight": (H, D),
        "mlp.dense_h_to_4h.bias": (H,),
        "mlp.dense_4h_to_h.weight": (D, H),
    }
    blocks = {f"{prefix}layers.{i}.{n}": s for i in range(12) for n, s in layers.items()}
    return {f"{prefix}embed_in.weight": (V, D), "embed_out.weight": (V, D), **blocks}


@pytest.mark.parametrize("prefix", ["", "gpt_neox.", "base_model.model.gpt_neox.", "module."])
def test_any_prefix_may_stand_before_the_names(prefix):
    name, family = find(pythia(prefix))
    anatomy = locate(family, pythia(prefix))
    assert name == "gpt_neox"
    assert [m.lower[0].layer for m in anatomy.mlps] == list(range(12))
    assert anatomy.mlps[3].lower[0] == Located(
        f"{prefix}layers.3.mlp.dense_h_to_4h.weight",
        layer=3,
        bias=f"{prefix}layers.3.mlp.dense_h_to_4h.bias",
    )
    assert anatomy.embedding.name == f"{prefix}embed_in.weight"
    assert anatomy.attentions[10].module == f"{prefix}layers.10.attention"


def llama_attention(inside, heads=2):
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return {f"{inside}.self_attn.{n}.weight": (D, D) for n in names}


def test_experts_of_a_published_mixtral_are_found_one_by_one():
    shapes = {"model.embed_tokens.weight": (V, D)} | llama_attention("model.layers.0")
    for expert in range(3):
        inside = f"model.layers.0.block_sparse_moe.experts.{expert}"
        shapes |= {f"{inside}.w1.weight": (H, D), f"{inside}.w3.weight": (H, D)}
        shapes |= {f"{inside}.w2.weight": (D, H)}
    name, family = find(shapes)
    assert name == "mixtral"
    mlps = locate(family, shapes).mlps
    assert [m.upper.expert for m in mlps] == [0, 1, 2]
    assert [m.site for m in mlps[2].lower] == ["mlp.gate", "mlp.up"]
    assert mlps[2].lower[1].name.endswith("experts.2.w3.weight")


def test_names_that_two_families_share_are_told_apart_by_shape():
    common = {"model.embed_tokens.weight": (V, D)} | llama_attention("model.layers.0")
    stack = "model.layers.0.mlp.experts"
    mixtral = common | {f"{stack}.gate_up_proj": (4, 2 * H, D), f"{stack}.down_proj": (4, D, H)}
    gpt_oss = common | {f"{stack}.gate_up_proj": (4, D, 2 * H), f"{stack}.down_proj": (4, H, D)}
    assert find(mixtral)[0] == "mixtral"
    assert find(gpt_oss)[0] == "gpt_oss"


def test_fused_and_stacked_matrices_are_cut_out_as_out_by_in():
    rng = np.random.default_rng(0)
    tensor = rng.normal(size=(4, D, 2 * H))
    matrix = Located("x", expert=2, outputs=slice(1, 2 * H, 2), transposed=True, stacked=True)
    assert matrix.take(tensor).shape == (H, D)
    np.testing.assert_array_equal(matrix.take(tensor), tensor[2].T[1::2])
    bias = rng.normal(size=(4, 2 * H))
    np.testing.assert_array_equal(matrix.take_bias(bias), bias[2, 1::2])


def test_published_vision_files_have_other_names_than_live_models():
    inside = "vit.encoder.layer.0"
    shapes = {f"{inside}.attention.attention.{n}.weight": (D, D) for n in ("query", "key", "value")}
    shapes |= {
        f"{inside}.attention.output.dense.weight": (D, D),
        f"{inside}.intermediate.dense.weight": (H, D),
        f"{inside}.output.dense.weight": (D, H),
    }
    name, family = find(shapes, ["vit"])
    assert name == "vit"
    assert locate(family, shapes).mlps[0].lower[0].name == f"{inside}.intermediate.dense.weight"


def test_two_towers_keep_their_places_apart():
    shapes = pythia("text.") | pythia("image.")
    _, family = find(shapes)
    anatomy = locate(family, shapes)
    places = [(m.lower[0].layer, m.lower[0].site) for m in anatomy.mlps]
    assert len(places) == len(set(places)) == 24
    assert {site for _, site in places} == {"text", "image"}
    assert {a.site for a in anatomy.attentions} == {"text", "image"}


def test_the_model_type_decides_where_names_do_not():
    shapes = {"transformer.word_embeddings.weight": (V, D)}
    inside = "transformer.h.0"
    shapes |= {
        f"{inside}.self_attention.query_key_value.weight": (3 * D, D),
        f"{inside}.self_attention.dense.weight": (D, D),
        f"{inside}.mlp.dense_h_to_4h.weight": (H, D),
        f"{inside}.mlp.dense_4h_to_h.weight": (D, H),
    }
    assert find(shapes, ["falcon"])[0] == "falcon"
    assert find(shapes, ["bloom"])[0] == "bloom"


# Structure


def nano(transposed=False, biased=True):
    """Names that no family knows."""
    up, down = ((D, H), (H, D)) if transposed else ((H, D), (D, H))
    block = {
        "norm1.weight": (D,),
        "attn.c_attn.weight": (3 * D, D),
        "attn.c_proj.weight": (D, D),
        "ff.expand.weight": up,
        "ff.shrink.weight": down,
    }
    if biased:
        block |= {"ff.expand.bias": (H,), "ff.shrink.bias": (D,)}
    shapes = {f"net.stack.{i}.{n}": s for i in range(3) for n, s in block.items()}
    return {"net.token_embedding.weight": (V, D), "net.pos_embedding.weight": (64, D), **shapes}


@pytest.mark.parametrize("transposed", [False, True])
def test_an_unknown_model_is_matched_by_structure(transposed):
    shapes = nano(transposed)
    name, family = find(shapes)
    anatomy = locate(family, shapes)
    assert name == "structure"
    assert [m.lower[0].name for m in anatomy.mlps] == [
        f"net.stack.{i}.ff.expand.weight" for i in range(3)
    ]
    assert anatomy.mlps[0].lower[0].transposed is transposed
    assert [a.module for a in anatomy.attentions] == [f"net.stack.{i}.attn" for i in range(3)]
    assert anatomy.embedding.name == "net.token_embedding.weight"


def test_structure_tells_a_gate_from_what_it_gates():
    shapes = nano(biased=False)
    shapes |= {f"net.stack.{i}.ff.gate.weight": (H, D) for i in range(3)}
    anatomy = locate(find(shapes)[1], shapes)
    assert {m.site for m in anatomy.mlps[0].lower} == {"mlp.gate", "mlp.expand"}


def test_structure_finds_two_matrices_fused_into_one():
    shapes = nano(biased=False)
    shapes |= {f"net.stack.{i}.ff.expand.weight": (2 * H, D) for i in range(3)}
    anatomy = locate(find(shapes)[1], shapes)
    assert [m.outputs for m in anatomy.mlps[0].lower] == [slice(0, H), slice(H, 2 * H)]


def test_a_model_without_blocks_is_refused_with_what_was_seen():
    shapes = {"conv.weight": (8, 3, 3, 3), "head.weight": (10, 8)}
    with pytest.raises(UnknownArchitectureError) as refusal:
        find(shapes, ["resnet"])
    message = str(refusal.value)
    assert "of type resnet" in message
    assert "conv.weight (8, 3, 3, 3)" in message
    assert "docs/how-to/add-a-family.md" in message


# Quantised weights


def test_files_of_codes_are_refused():
    shapes = {"model.embed_tokens.weight": (V, D)}
    inside = "model.layers.0.mlp"
    shapes |= {f"{inside}.{n}.qweight": (D // 8, H) for n in ("gate_proj", "up_proj")}
    shapes |= {f"{inside}.down_proj.qweight": (H // 8, D)}
    with pytest.raises(QuantisedWeightsError, match="load the model unquantised"):
        find(shapes, ["llama"])


@pytest.mark.parametrize("dtype", ["torch.uint8", "U8", "I8", "F8_E4M3", "torch.float8_e4m3fn"])
def test_a_dtype_of_codes_is_refused(dtype):
    with pytest.raises(QuantisedWeightsError, match=dtype):
        refuse_codes("model.layers.0.mlp.up_proj.weight", dtype)


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "BF16", "F32", "torch.float64"])
def test_a_dtype_of_numbers_is_accepted(dtype):
    refuse_codes("w", dtype)


# Heads


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("order", ["separate", "blocks", "groups"])
def test_heads_come_out_whatever_way_they_went_in(order, heads, kv_heads):
    from joma.architectures.base import LocatedAttention

    rng = np.random.default_rng(0)
    width = 3
    query = rng.normal(size=(heads, width, D))
    key, value = rng.normal(size=(2, kv_heads, width, D))
    output = rng.normal(size=(heads, D, width))
    flat = [part.reshape(-1, D) for part in (query, key, value)]
    tensors = {"o": output.swapaxes(0, 1).reshape(D, -1)}
    if order == "separate":
        tensors |= dict(zip("qkv", flat, strict=True))
        names = {"query": "q", "key": "k", "value": "v", "output": "o"}
    else:
        if order == "blocks":
            fused = np.concatenate(flat)
        else:
            grouped = query.reshape(kv_heads, -1, width, D)
            fused = np.concatenate([grouped, key[:, None], value[:, None]], 1).reshape(-1, D)
        tensors["qkv"] = fused
        names = {"query": "qkv", "key": "qkv", "value": "qkv", "output": "o"}
    attention = LocatedAttention("attn", 0, None, names, order)
    split = split_heads(attention, tensors, heads)
    for role, expected in (("query", query), ("key", key), ("value", value), ("output", output)):
        np.testing.assert_array_equal(split[role], expected)

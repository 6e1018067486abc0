"""A model that is shown layer by layer and sent back is the same."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from models.errors import DomainError
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.attention import Attention, Compression, Indexer
from models.spec.encoder import Encoder, Projector
from models.spec.feed_forward import Mlp, Moe
from models.spec.layer import Layer
from models.spec.recurrence import DeltaNet, LightningAttention, Mamba2, ShortConvolution
from service.formats import huggingface
from service.resolve.explicit_models import explicit_fields
from service.schemas.layer_list import LayerListFields
from tests.long import one_in
from tests.oracles.random_problems import random_hybrid
from tests.paths import SHARED
from tests.service.asking import PREDICTION, QUESTION, SHAPE, changed

MODELS = {model.name: model for model in catalogue.architectures().values()}


def sent_back(architecture: Architecture) -> Architecture:
    """The architecture of the fields that are shown, which say no name."""
    shown = json.loads(json.dumps(explicit_fields(architecture)))
    return replace(LayerListFields.model_validate(shown).build(), name=architecture.name)


def sensible(architecture: Architecture) -> Architecture:
    """Without what no model has, and the wire refuses."""
    layers = tuple(_sensible_layer(layer) for layer in architecture.layers)
    return replace(architecture, layers=(*map(_with_own_indexer, layers),))


def _with_own_indexer(layer: Layer) -> Layer:
    attention = layer.attention
    if attention is None or attention.indexer is None:
        return layer
    own = replace(attention.indexer, shared=False)
    return replace(layer, attention=replace(attention, indexer=own))


def _sensible_layer(layer: Layer) -> Layer:
    attention, moe = layer.attention, layer.moe
    if attention and not attention.qk_norm:
        layer = replace(layer, attention=replace(attention, qk_norm_all_heads=False))
    if moe and not moe.shared_expert_intermediate_size:
        layer = replace(layer, feed_forward=replace(moe, shared_gate=False))
    return layer


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_comes_back(name: str) -> None:
    assert sent_back(MODELS[name]) == MODELS[name]


@pytest.mark.parametrize("first", one_in(3, range(0, 300, 100)))
def test_random_models_come_back(first: int) -> None:
    for seed in range(first, first + 100):
        model = sensible(random_hybrid(np.random.default_rng(seed)).architecture)
        assert sent_back(model) == model, seed


@pytest.mark.skipif(not (SHARED / "hf_configs").is_dir(), reason="needs the configs of models")
def test_models_of_published_configs_come_back() -> None:
    for path in sorted((SHARED / "hf_configs").glob("*.json")):
        try:
            model = huggingface.read(json.loads(path.read_text()))
        except DomainError:  # not a config, or of a family that is refused
            continue
        assert sent_back(model) == model, path.name


BY_WORKLOAD = ("gradients", "head_size")


def every_field(form: Any, **chosen: Any) -> Any:
    """A value of a dataclass, none of whose fields has its default, but for those that a workload
    decides (models.spec.trained)."""
    for field in fields(form):
        if field.name in BY_WORKLOAD:
            continue
        assert field.name in chosen, f"{form.__name__}.{field.name} is not tried"
        assert chosen[field.name] != field.default
    return form(**chosen)


BIDIRECTIONAL = every_field(
    Attention,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    v_head_dim=96,
    q_lora_rank=384,
    kv_lora_rank=256,
    qk_rope_head_dim=32,
    sliding_window=512,
    chunked_attention=True,
    causal=False,
    attention_bias=True,
    attention_output_bias=True,
    qk_norm=True,
    qk_norm_all_heads=True,
    kv_norm=True,
    sinks=True,
    output_gate="head",
    values_are_keys=True,
    o_groups=4,
    o_lora_rank=64,
    compression=every_field(Compression, rate=8, overlap=True),
    indexer=every_field(
        Indexer,
        num_heads=4,
        head_dim=64,
        top_k=256,
        weighs_heads=False,
        norm_parameters=128,
        shared=True,
    ),
)
ATTENTION = replace(BIDIRECTIONAL, causal=True)
ENCODER = every_field(
    Encoder,
    hidden_size=96,
    layers=tuple(
        Layer(
            attention=Attention(
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=48,
                v_head_dim=48,
                causal=False,
                sliding_window=window,
                chunked_attention=window is not None,
            ),
            feed_forward=Mlp(intermediate_size=200, gated=False, bias=True),
            norm_bias=True,
        )
        for window in (64, 64, None, 64)
    ),
    tokens_per_sequence=500,
    tokens_per_image=200,
    patches_per_token=4,
    patch_elements=588,
    other_parameters=3000,
    projector=every_field(Projector, matrices=((384, 384), (384, 512)), vectors=96),
    trained=False,
    projector_trained=False,
)  # fmt: skip
HEADS = {
    "num_heads": 32,
    "num_key_heads": 8,
    "key_head_dim": 64,
    "value_head_dim": 128,
    "conv_kernel": 3,
}
LAYERS = [
    Layer(attention=replace(ATTENTION, kv_lora_rank=None, qk_rope_head_dim=0), num_norms=1),
    Layer(
        attention=replace(
            ATTENTION, num_key_value_heads=32, values_are_keys=False, kv_norm=False, qk_norm=False,
            qk_norm_all_heads=False,
        ),
        num_norms=1,
    ),
    *[
        Layer(recurrence=recurrence, num_norms=1)
        for recurrence in (
            every_field(Mamba2, **HEADS, conv_bias=False, bias=True, norm=False),
            every_field(DeltaNet, **HEADS, decay_per_element=True, decay_rank=64, gate_rank=32),
            DeltaNet(**HEADS, decay_rank=64),
            every_field(LightningAttention, **HEADS),
            ShortConvolution.of(512, 5, bias=True),
        )
    ],
    every_field(
        Layer,
        attention=Attention(
            num_attention_heads=8, num_key_value_heads=8, head_dim=64, v_head_dim=64
        ),
        recurrence=LightningAttention(**HEADS),
        feed_forward=every_field(
            Mlp, intermediate_size=512, gated=False, bias=True, learned_activation=True
        ),
        num_norms=1,
        post_norms=True,
        norm_weight=False,
        norm_bias=True,
        parallel=True,
        residual_streams=4,
        attention_residuals=True,
    ),
    Layer(
        feed_forward=every_field(
            Moe,
            num_experts=16,
            experts_per_token=2,
            intermediate_size=256,
            shared_expert_intermediate_size=512,
            gated=False,
            bias=True,
            router_bias=True,
            shared_gate=True,
            selection_bias=True,
            selection_bias_is_parameter=True,
            router_scales=True,
            num_groups=4,
            groups_per_token=2,
            latent_size=128,
            latent_norm=True,
            zero_experts=64,
        ),
        num_norms=0,
    ),
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_every_field_of_a_layer_has_a_word(layer: Layer) -> None:
    model = every_field(
        Architecture,
        name="model",
        hidden_size=512,
        vocab_size=1000,
        # Whose indexer is shared reads what one before it chose.
        layers=(*dict.fromkeys((_with_own_indexer(layer), layer)),),
        tie_word_embeddings=True,
        mtp_layers=1,
        learned_positions=2048,
        lm_head_bias=True,
        final_norm_weight=False,
        final_norm_bias=True,
        encoder=ENCODER,
    )
    assert sent_back(model) == model


def test_layers_are_named_where_one_would_stand_there_twice() -> None:
    written_out = explicit_fields(MODELS["gemma-2-9b"])
    assert "layer_kinds" not in written_out
    period, rest = explicit_fields(MODELS["gemma-3-1b"])["layers"]
    assert period["layers"] == [*["local_attention_mlp"] * 5, "attention_mlp"]
    assert rest == {"repeat": 2, "layers": ["local_attention_mlp"]}


def test_the_catalogue_shows_what_to_change_and_ask_about(shared_client) -> None:
    entry = shared_client.get("/v1/catalog/architectures/llama-3.1-8b").json()
    model = entry["resolved"]["model"]
    by_name = shared_client.post("/v1/predictions", json=PREDICTION).json()
    by_list = shared_client.post("/v1/predictions", json=changed(PREDICTION, "model", model)).json()
    assert by_list["layouts"] == by_name["layouts"]
    assert by_list["catalogue"]["architecture"]["name"] == entry["name"]
    assert by_name["catalogue"]["architecture"]["model"] == model
    model["layers"][0]["count"] = 16
    half = shared_client.post("/v1/predictions", json=changed(PREDICTION, "model", model)).json()
    assert half["catalogue"]["architecture"]["num_layers"] == 16
    assert half["catalogue"]["architecture"]["name"] != entry["name"]


def test_a_list_may_be_registered(client) -> None:
    shown = explicit_fields(MODELS["gemma-3-1b"])
    made = client.post("/v1/catalog/architectures", json={"name": "mine", "model": shown}).json()
    assert made["resolved"]["model"] == shown == made["given"]["model"]
    shape = client.post("/v1/catalog/architectures", json={"name": "own", "model": SHAPE}).json()
    assert shape["resolved"]["num_layers"] == SHAPE["num_layers"]


def test_a_launch_may_stand_beside_a_list(shared_client) -> None:
    launch = {
        "format": "torchtitan",
        "arguments": [
            "--parallelism.data_parallel_shard_degree=64",
            "--training.seq_len=8192",
            "--training.global_batch_size=512",
        ],
    }
    model = explicit_fields(MODELS["llama-3-8b"])
    asked = {"model": model, "cluster": QUESTION["cluster"], "launch": launch}
    answer = shared_client.post("/v1/predictions", json=asked)
    assert answer.is_success, answer.text
    assert answer.json()["catalogue"]["architecture"]["name"] == "llama-3-8b"

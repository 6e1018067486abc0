"""Models layer by layer. They have the parameters that transformers counts for the same model (of
DeepSeek-V3.2, DeepSeek-V4, Nemotron-H, Nemotron 3 and Qwen3-Next by their published configs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from models.spec.architecture import Architecture
from service.schemas.architecture import OwnModel
from service.schemas.layer_list import LayerListFields
from tests.service.asking import PREDICTION, SHAPE, assert_problem, changed

ATTENTION: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 8}
MLP: dict[str, Any] = {"intermediate_size": 14336}
LAYER: dict[str, Any] = {"attention": ATTENTION, "mlp": MLP}
MOE: dict[str, Any] = {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 512}
MLA: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MAMBA: dict[str, Any] = {"kind": "mamba2", "num_heads": 64, "head_dim": 64, "state_size": 128}
DELTA: dict[str, Any] = {"kind": "gated_delta_net", "num_heads": 32, "key_head_dim": 128}
KIMI: dict[str, Any] = {
    **DELTA, "kind": "kimi_delta_attention", "decay_rank": 128, "gate_rank": 128,
}  # fmt: skip
LIGHTNING: dict[str, Any] = {"kind": "lightning_attention", "num_heads": 16, "key_head_dim": 128}


def model(*layers: Any, **fields: Any) -> dict[str, Any]:
    return {"hidden_size": 4096, "vocab_size": 128256, "layers": [*layers], **fields}


def built(fields: Mapping[str, Any]) -> Architecture:
    return LayerListFields.model_validate(fields).build()


# -- models that are published


def nemotron(pattern: str, hidden_size: int, **kinds: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden_size,
        "vocab_size": 131072,
        "layers": [*pattern],
        "layer_kinds": kinds,
    }


def qwen3_next() -> dict[str, Any]:
    moe = {
        "num_experts": 512,
        "experts_per_token": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "shared_gate": True,
    }
    attention = {
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "qk_norm": True,
        "output_gate": "element",
    }
    linear = {"count": 3, "recurrence": {**DELTA, "num_key_heads": 16}, "moe": moe}
    period = [linear, {"attention": attention, "moe": moe}]
    return {
        "hidden_size": 2048,
        "vocab_size": 151936,
        "layers": [{"repeat": 12, "layers": period}],
    }


def kimi_linear() -> dict[str, Any]:
    moe = {
        "num_experts": 256,
        "experts_per_token": 8,
        "moe_intermediate_size": 1024,
        "num_shared_experts": 1,
        "selection_bias": True,
    }
    period = ["full", "linear", "linear", "linear"]
    return {
        "hidden_size": 2304,
        "vocab_size": 163840,
        "layer_kinds": {
            "linear": {"recurrence": KIMI, "moe": moe},
            "full": {"attention": {"num_attention_heads": 32, "mla": MLA}, "moe": moe},
        },
        "layers": [
            {"recurrence": KIMI, "mlp": {"intermediate_size": 9216}},
            *["linear"] * 3,
            {"repeat": 5, "layers": period},
            *["full", "linear", "linear"],
        ],
    }


def minimax() -> dict[str, Any]:
    moe = {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 3072}
    full = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
    period = [{"count": 7, "recurrence": LIGHTNING, "moe": moe}, {"attention": full, "moe": moe}]
    return {
        "hidden_size": 2048,
        "vocab_size": 32000,
        "layers": [{"repeat": 2, "layers": period}],
    }


def nemotron_h() -> dict[str, Any]:
    return nemotron(
        "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
        8192,
        **{
            "M": {"recurrence": {**MAMBA, "num_heads": 256, "state_size": 256, "num_groups": 8}},
            "-": {"mlp": {"intermediate_size": 32768, "gated": False}},
            "*": {"attention": {**ATTENTION, "num_attention_heads": 64, "head_dim": 128}},
        },
    )


def nemotron_3() -> dict[str, Any]:
    experts = {
        "num_experts": 128,
        "experts_per_token": 6,
        "moe_intermediate_size": 1856,
        "shared_expert_intermediate_size": 3712,
        "gated": False,
        "selection_bias": True,
    }
    return nemotron(
        "MEMEM*E" + "MEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME",
        2688,
        **{
            "M": {"recurrence": {**MAMBA, "num_groups": 8}},
            "E": {"moe": experts},
            "*": {"attention": {**ATTENTION, "num_key_value_heads": 2, "head_dim": 128}},
        },
    )


def deepseek_v3_2() -> dict[str, Any]:
    attention = {
        "num_attention_heads": 128,
        "mla": {**MLA, "q_lora_rank": 1536},
        "indexer": {"num_heads": 64, "head_dim": 128, "top_k": 2048, "norm_parameters": 256},
    }
    moe = {
        "num_experts": 256,
        "experts_per_token": 8,
        "moe_intermediate_size": 2048,
        "num_shared_experts": 1,
        "num_groups": 8,
        "groups_per_token": 4,
        "selection_bias": True,
    }
    return {
        "hidden_size": 7168,
        "vocab_size": 129280,
        "layers": [
            {"count": 3, "attention": attention, "mlp": {"intermediate_size": 18432}},
            {"count": 58, "attention": attention, "moe": moe},
        ],
    }


def deepseek_v4_flash() -> dict[str, Any]:
    attention = {
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "q_lora_rank": 1024,
        "values_are_keys": True,
        "kv_norm": True,
        "sinks": True,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "sliding_window": 128,
    }
    chosen = {
        "compression": {"rate": 4, "overlap": True},
        "indexer": {"num_heads": 64, "head_dim": 128, "top_k": 512},
    }
    moe = {
        "num_experts": 256,
        "experts_per_token": 6,
        "moe_intermediate_size": 2048,
        "num_shared_experts": 1,
    }
    return {
        "hidden_size": 4096,
        "vocab_size": 129280,
        "residual_streams": 4,
        "layer_kinds": {
            "chosen": {"attention": {**attention, **chosen}, "moe": moe},
            "pooled": {"attention": {**attention, "compression": {"rate": 128}}, "moe": moe},
        },
        "layers": [
            {"count": 2, "attention": attention, "moe": moe},
            {"repeat": 20, "layers": ["chosen", "pooled"]},
            "chosen",
        ],
    }


@pytest.mark.parametrize(
    ("fields", "num_layers", "parameters"),
    [
        (qwen3_next(), 48, 79_674_391_296),
        (kimi_linear(), 27, 49_133_074_464),
        (minimax(), 16, 2_861_922_304),
        (nemotron_h(), 118, 56_324_350_464),
        (nemotron_3(), 52, 31_577_937_344),
        (deepseek_v3_2(), 61, 671_877_929_216),
        (deepseek_v4_flash(), 43, 284_332_230_231),
    ],
)
def test_published_models_have_their_parameters(
    fields: dict[str, Any], num_layers: int, parameters: int
) -> None:
    found = built(fields)
    assert (found.num_layers, found.parameters.total) == (num_layers, parameters)


# -- ways to write the same


def test_a_list_of_one_layer_is_the_model_of_the_same_shape() -> None:
    shape: Any = TypeAdapter(OwnModel).validate_python(SHAPE)
    heads = {"num_attention_heads": 32}
    assert built(model({"count": 32, "attention": heads, "mlp": MLP})) == shape.build()


@pytest.mark.parametrize(
    "layers",
    [
        [LAYER, LAYER, {"moe": MOE}, LAYER, LAYER, {"moe": MOE}],
        [{"repeat": 2, "layers": [{"count": 2, **LAYER}, {"moe": MOE}]}],
        [{"repeat": 2, "layers": ["dense", "dense", {"moe": MOE}]}],
        ["dense", {"count": 1, **LAYER}, {"moe": MOE}, {"repeat": 2, "layers": ["dense"]},
         {"count": 1, "moe": MOE}],
    ],
)  # fmt: skip
def test_a_list_may_be_written_in_several_ways(layers: list[Any]) -> None:
    kinds = {"layer_kinds": {"dense": LAYER}} if "dense" in str(layers) else {}
    written_out = built(model(LAYER, LAYER, {"moe": MOE}, LAYER, LAYER, {"moe": MOE}))
    assert built(model(*layers, **kinds)) == written_out


def test_norms_are_one_for_each_part() -> None:
    found = built(model(LAYER, {"mlp": MLP}, {**LAYER, "num_norms": 1}, {**LAYER, "num_norms": 4}))
    assert [layer.num_norms for layer in found.layers] == [2, 1, 1, 4]
    assert [layer.parallel for layer in found.layers] == [False, False, True, False]


def test_a_model_may_have_a_mixer_of_each_kind_beside_another() -> None:
    found = built(model({"attention": ATTENTION, "recurrence": MAMBA, "mlp": MLP}))
    assert len(found.layers[0].mixers) == 2


# -- what is refused


def attends(**fields: Any) -> dict[str, Any]:
    return {**LAYER, "attention": {**ATTENTION, **fields}}


def recurs(**fields: Any) -> dict[str, Any]:
    return {"recurrence": fields}


NAMED = {"layer_kinds": {"dense": LAYER}}
BAD_MODELS: list[tuple[dict[str, Any], str]] = [
    (model(), "/layers"),
    (model(5), "/layers/0"),
    (model({}), "/layers/0"),
    (model(LAYER, {"count": 3}), "/layers/1"),
    (model({**LAYER, "count": 0}), "/layers/0/count"),
    (model({**LAYER, "count": 1025}), "/layers/0/count"),
    (model({**LAYER, "count": 1000}, {**LAYER, "count": 25}), "/layers"),
    (model({"repeat": 33, "layers": [{**LAYER, "count": 32}]}), "/layers"),
    (model({"repeat": 2, "layers": []}), "/layers/0/layers"),
    (model({"repeat": 2}), "/layers/0/layers"),
    (model({"layers": [LAYER]}), "/layers/0/repeat"),
    (
        model({
            "attention": {
                **ATTENTION,
                "indexer": {"num_heads": 4, "head_dim": 64, "top_k": 256, "shared": True},
            },
            "mlp": MLP,
        }),
        "/layers/0/attention/indexer/shared",
    ),
    (
        model({"repeat": 2, "layers": [{"repeat": 2, "layers": [LAYER]}]}),
        "/layers/0/layers/0/repeat",
    ),
    (model("dense"), "/layers/0"),
    (model("dense", {"repeat": 2, "layers": ["sparse"]}, **NAMED), "/layers/1/layers/0"),
    (model(LAYER, **NAMED), "/layer_kinds/dense"),
    (model("a b", layer_kinds={"a b": LAYER}), "/layer_kinds/a b"),
    (model("dense", layer_kinds={"dense": {}}), "/layer_kinds/dense"),
    (model("dense", layer_kinds={"dense": {**LAYER, "count": 2}}), "/layer_kinds/dense/count"),
    ({"hidden_size": 4096, "vocab_size": 1000, **NAMED}, "/layers"),
    ({"model_type": "llama", **model(LAYER)}, "/layers"),
    (model(LAYER, num_layers=1), "/num_layers"),
    (model(LAYER, num_attention_heads=32), "/num_attention_heads"),
    (model(LAYER, moe=MOE), "/moe"),
    (model(LAYER, num_hidden_layers=1), "/num_hidden_layers"),
    (model({**LAYER, "experts": MOE}), "/layers/0/experts"),
    (model({**LAYER, "moe": MOE}), "/layers/0/moe"),
    (model({"mlp": MLP, "parallel_blocks": True}), "/layers/0/parallel_blocks"),
    (model(attends(heads=32)), "/layers/0/attention/heads"),
    (model(attends(num_key_value_heads=5)), "/layers/0/attention/num_key_value_heads"),
    (model(attends(num_attention_heads=24)), "/layers/0/attention/head_dim"),
    (model(attends(chunked_attention=True)), "/layers/0/attention/chunked_attention"),
    (model(attends(kv_norm=True)), "/layers/0/attention/kv_norm"),
    (model(attends(qk_norm_all_heads=True)), "/layers/0/attention/qk_norm_all_heads"),
    (model(attends(o_groups=4)), "/layers/0/attention/o_groups"),
    (model(attends(o_groups=5, o_lora_rank=64)), "/layers/0/attention/o_groups"),
    (model(attends(mla=MLA)), "/layers/0/attention/num_key_value_heads"),
    (model(attends(output_gate=True)), "/layers/0/attention/output_gate"),
    (model(attends(indexer={"top_k": 64})), "/layers/0/attention/indexer/num_heads"),
    (model(attends(compression={"rate": 0})), "/layers/0/attention/compression/rate"),
    (model({"recurrence": "mamba2"}), "/layers/0/recurrence"),
    (model(recurs(num_heads=8)), "/layers/0/recurrence/kind"),
    (model(recurs(kind="mamba", num_heads=8)), "/layers/0/recurrence/kind"),
    (model(recurs(**MAMBA, key_head_dim=64)), "/layers/0/recurrence/key_head_dim"),
    (model(recurs(**MAMBA, num_groups=7)), "/layers/0/recurrence/num_groups"),
    (model(recurs(**DELTA, num_key_heads=64)), "/layers/0/recurrence/num_key_heads"),
    (model(recurs(**LIGHTNING, gate_rank=64)), "/layers/0/recurrence/gate_rank"),
    (model({"moe": {**MOE, "experts_per_token": 9}}), "/layers/0/moe/experts_per_token"),
    (model({"moe": {**MOE, "num_groups": 3}}), "/layers/0/moe/num_groups"),
    (model({"moe": {**MOE, "groups_per_token": 2}}), "/layers/0/moe/groups_per_token"),
    (model({"moe": {**MOE, "shared_gate": True}}), "/layers/0/moe/shared_gate"),
    (model({"moe": {**MOE, "latent_norm": True}}), "/layers/0/moe/latent_norm"),
    (
        model({"moe": {**MOE, "selection_bias_is_parameter": True}}),
        "/layers/0/moe/selection_bias_is_parameter",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "pointer"), BAD_MODELS)
def test_what_contradicts_itself_is_refused_at_its_place(
    shared_client, fields: dict[str, Any], pointer: str
) -> None:
    answer = shared_client.post("/v1/predictions", json=changed(PREDICTION, "model", fields))
    assert_problem(answer, "invalid", f"/model{pointer}")


def test_a_field_beside_the_list_says_where_it_belongs() -> None:
    with pytest.raises(ValidationError, match=r"each layer has its own attention\.head_dim"):
        built(model(LAYER, head_dim=128))


def test_a_list_is_asked_about_like_any_model(shared_client) -> None:
    asked = changed(PREDICTION, "model", {**qwen3_next(), "name": "mine"})
    answer = shared_client.post("/v1/predictions", json=asked).json()
    assert answer["catalogue"]["architecture"]["name"] == "mine"
    assert answer["request"]["model"] == asked["model"]
    again = shared_client.post("/v1/predictions", json=answer["request"]).json()
    assert again["layouts"] == answer["layouts"]

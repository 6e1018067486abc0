from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from service.resolve.resolution import TEXT_TOWERS
from tests.service.asking import PREDICTION, SHAPE, changed

PUBLISHED = json.loads((Path(__file__).parents[1] / "formats/published.json").read_text())
GLM4V = {
    "model_type": "glm4v",
    "text_config": {
        "model_type": "glm4v_text", "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}  # fmt: skip
MULTIMODAL = next(
    item["config"] for item in PUBLISHED.values() if item["config"]["model_type"] == "llama4"
)

HYBRIDS = json.loads((Path(__file__).parents[1] / "formats/hybrids.json").read_text())
KIMI = next(one["config"] for one in HYBRIDS if one["config"]["model_type"] == "kimi_linear")

QUANTIZED = {**PUBLISHED["Llama-3.2-1B"]["config"], "quantization_config": {"quant_method": "fp8"}}


def on(preset: str, **layout: Any) -> dict[str, Any]:
    return {**changed(PREDICTION, "cluster.preset", preset), "stack": "generic", "layout": layout}


SPARSE = {
    **changed(PREDICTION, "model", "mixtral-8x7b"),
    "stack": "megatron",
    "layout": {"tp": 8, "dp_shard": 8},
}
SHARDED = {"dp_shard": 64, "zero_stage": 3}
MOE = {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 1024}
MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
TORUS = {"ndim": 3, "max_chips": 64, "gb_s_per_link": 90, "wrap": "cubes", "wrap_length": 4}
OWN = {"name": "torchtitan", "attention_kernel": "flash2", "gradient_bytes": 2.0}
LOOPED = {"name": "deepspeed", "experts_at_once": False}
SAID = [
    (
        {**SPARSE, "stack": "deepspeed", "layout": SHARDED},
        "all experts of a device are multiplied at",
    ),
    (
        {**SPARSE, "stack": LOOPED, "layout": SHARDED},
        'one by one: transformers from 5.0 on multiplies for all at once (experts_implementation="',
    ),
    (
        {**SPARSE, "stack": {**LOOPED, "version": "0.17.1"}, "layout": SHARDED},
        "gathers every matrix of each by itself: deepspeed.utils.set_z3_leaf_modules has it",
    ),
    (
        on("h100", **SHARDED, sequence_parallel=True),
        "layout.sequence_parallel is False: with tp 1 it shards nothing",
    ),
    (on("trn2", **SHARDED, tp=4), "usable memory is nominal: all 96 GiB of the data sheet"),
    (
        on("mi250x", **SHARDED),
        "cluster.num_chips counts mi250x-gcd: each is a GCD, half of an MI250X",
    ),
    (on("vr200", **SHARDED), "figures of vr200-nvl72 are data sheet only: it is announced"),
    (on("vr200", **SHARDED), "each is a package of two dies, of which a rack has 72"),
    (on("vr200", **SHARDED), "generation 'rubin' is uncalibrated: coefficients of the generic"),
    (on("l40s", **SHARDED), "generation 'ada' is uncalibrated: coefficients of the generic"),
    (
        on("tpu-v7x", dp_shard=128, zero_stage=3),
        "a chip has 2 devices: degrees multiply to 128 devices",
    ),
    (changed(PREDICTION, "model", "llama-4-scout"), "of llama-4-scout only the text tower counts"),
    (changed(PREDICTION, "model", MULTIMODAL), "of llama-4-maverick only the text tower counts"),
    (changed(PREDICTION, "model", MULTIMODAL), "model.encoder.tokens_per_sequence brings in the"),
    (
        changed(PREDICTION, "model", GLM4V),
        "the encoder of this family is not read; a model in explicit fields may have one",
    ),
    (
        on("ascend-910c", **SHARDED),
        "each is a die, half of a 910C: npu-smi lists a package as two devices of 64 GB",
    ),
    (
        changed(on("h100", **SHARDED), "model", {**KIMI, "attn_res_block_size": 4}),
        "of the model's attention residuals only the parameters count",
    ),
    (
        changed(PREDICTION, "model", QUANTIZED),
        "model.quantization_config has no effect: training is in",
    ),
    (changed(PREDICTION, "workload.token_budget", 1e12), "workload.token_budget has no effect"),
    (
        changed(PREDICTION, "workload.load_balancing", "bias"),
        "workload.load_balancing has no effect",
    ),
    (changed(PREDICTION, "model", {**SHAPE, "moe": MOE}), "model.intermediate_size has no effect"),
    (
        changed(PREDICTION, "model", {**SHAPE, "mla": MLA, "head_dim": 99}),
        "model.head_dim has no effect",
    ),
    (
        changed(PREDICTION, "model", {**SHAPE, "mla": MLA, "num_key_value_heads": 1}),
        "model.num_key_value_heads has no effect",
    ),
    (
        changed(
            on("h100", **SHARDED),
            "cluster",
            {"chip": "h100", "num_chips": 64, "torus": TORUS, "levels": [{"gb_s_per_chip": 3}]},
        ),
        "cluster.levels has no effect",
    ),
    (
        {**on("tpu-v5p", **SHARDED), "cluster": {"preset": "tpu-v5p", "torus_shape": [2, 4, 8]}},
        "are not joined",
    ),
    (
        {**on("tpu-v5p", **SHARDED), "cluster": {"preset": "tpu-v5p", "torus_shape": [2, 4, 8]}},
        "[2, 4, 8] is no slice",
    ),
    (
        {
            **on("tpu-v6e", dp_shard=1024, zero_stage=3),
            "cluster": {"preset": "v6e", "torus_shape": [32, 32]},
            "workload": {**PREDICTION["workload"], "global_batch": 1024},
        },
        "its 1024 chips are taken for one torus, where the largest has 256",
    ),
    (
        SPARSE,
        (
            "layout.etp is 1, experts are whole: Megatron-LM, told nothing, cuts them like the rest"
            " (etp = 8)"
        ),
    ),
    (
        {**on("h100", dp_shard=64, zero_stage=1), "stack": "nanotron"},
        "but not what ZeRO 1 moves once a step",
    ),
    ({**PREDICTION, "stack": OWN}, "attention runs on flash2, as the request says"),
    (
        {**PREDICTION, "stack": OWN},
        "gradients are kept and reduced in 2 bytes each, as the request says",
    ),
]


@pytest.mark.parametrize(
    ("size", "open_"), [({"num_chips": 64}, True), ({"torus_shape": [4, 4, 4]}, False), ({}, False)]
)
def test_a_shape_that_the_request_names_is_not_said_to_be_chosen(
    shared_client, size: dict, open_: bool
) -> None:
    cluster = {"preset": "tpu-v5p" if size else "v5p-4x4x4", **size}
    asked = {**on("h100", **SHARDED), "cluster": cluster}
    lines = shared_client.post("/v1/predictions", json=asked).json()["assumptions"]
    assert ("cluster.torus_shape is 4x4x4, the most cubic slice" in lines) == open_


@pytest.mark.parametrize(("body", "said"), SAID)
def test_what_a_prediction_takes_for_granted_is_said_when_it_applies(
    shared_client, body: dict, said: str
) -> None:
    def lines(asked: dict[str, Any]) -> str:
        answer = shared_client.post("/v1/predictions", json=asked)
        assert answer.is_success, answer.text
        return "\n".join(answer.json()["assumptions"])

    assert said in lines(body)
    assert said not in lines(PREDICTION)


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ("torchtitan", "attention runs on cudnn, what torchtitan picks on hopper"),
        ("torchtitan", "torchtitan hides traffic beside compute: stack.overlap_data"),
        ("generic", "gradients are kept and reduced in 4 bytes each, as generic does"),
    ],
)
def test_what_a_stack_does_by_itself_is_said_to_be_its_own(
    shared_client, stack: str, said: str
) -> None:
    asked = {**PREDICTION, "stack": stack}
    lines = shared_client.post("/v1/predictions", json=asked).json()["assumptions"]
    assert any(line.startswith(said) for line in lines)


def test_what_a_switch_of_the_framework_decides_is_no_assumption(shared_client) -> None:
    lines = shared_client.post("/v1/predictions", json=PREDICTION).json()["assumptions"]
    assert not any("overlap_tensor" in line or "gradients" in line for line in lines)


def test_load_balancing_of_experts_is_not_said_to_be_idle(shared_client) -> None:
    sparse = changed(
        changed(PREDICTION, "model", "mixtral-8x7b"), "workload.load_balancing", "bias"
    )
    answer = shared_client.post("/v1/predictions", json=sparse)
    assert answer.is_success
    assert "no effect" not in answer.text


def test_the_text_towers_are_those_of_the_shipped_data() -> None:
    entries = json.loads((files("models") / "data/architectures.json").read_text())
    assert {
        entry["id"] for entry in entries if entry["source"].startswith("text tower")
    } == TEXT_TOWERS


def test_predictions_of_the_newest_software_say_so(shared_client) -> None:
    def said(stack: Any) -> bool:
        answer = shared_client.post("/v1/predictions", json={**PREDICTION, "stack": stack}).json()
        return any("as new as the newest" in line for line in answer["assumptions"])

    assert said("torchtitan")
    assert not said({"name": "torchtitan", "age_years": 1.5})


def test_software_beyond_what_the_profile_knows_says_so(shared_client) -> None:
    def lines(chip: str, **stack: Any) -> str:
        body = changed(
            {**PREDICTION, "stack": {"name": "torchtitan", **stack}}, "cluster.preset", chip
        )
        answer = shared_client.post("/v1/predictions", json=body)
        assert answer.is_success, answer.text
        return "\n".join(answer.json()["assumptions"])

    assert "no published run on ampere chips has newer ones" in lines("a100")
    assert "no published run on" not in lines("a100", age_years=2.5)
    assert "no published run on" not in lines("h100")
    assert "stack.age_years = 5 counts as 3" in lines("h100", age_years=5)


def test_a_partly_filled_domain_and_an_idle_network_are_named(shared_client) -> None:
    def lines(**cluster: Any) -> str:
        body = {
            **PREDICTION,
            "cluster": cluster,
            "layout": {"dp_shard": cluster["num_chips"], "zero_stage": 3},
        }
        body["workload"] = {"seq_len": 4096, "global_batch": 48}
        answer = shared_client.post("/v1/predictions", json=body)
        assert answer.is_success, answer.text
        return "\n".join(answer.json()["assumptions"])

    assert "chips_per_domain is 8; the last domain holds 4" in lines(preset="h100", num_chips=12)
    held = lines(preset="h100", num_chips=12, chips_per_domain=8)
    assert "chips_per_domain is 8; the last domain holds 4" in held
    assert "scale_out_gb_s has no effect" in lines(preset="h100", num_chips=8, scale_out_gb_s=1)


def test_memory_that_the_request_states_is_not_nominal(shared_client) -> None:
    body = changed(on("trn2", **SHARDED, tp=4), "cluster.usable_memory_gib", 90)
    answer = shared_client.post("/v1/predictions", json=body)
    assert "usable memory is nominal" not in "\n".join(answer.json()["assumptions"])


def test_a_slice_by_its_shape_needs_no_count(shared_client) -> None:
    body = {
        **PREDICTION,
        "cluster": {"preset": "v5p", "torus_shape": [4, 4, 4]},
        "stack": "maxtext",
        "layout": {"dp_shard": 64, "zero_stage": 3},
    }
    assert shared_client.post("/v1/predictions", json=body).is_success

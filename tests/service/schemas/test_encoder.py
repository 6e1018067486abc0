"""The encoder of images of a vision-language model, on the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.service.asking import PREDICTION, SHAPE, changed

TOWERS = json.loads((Path(__file__).parents[1] / "formats/vision_towers.json").read_text())
QWEN: dict[str, Any] = next(
    one["config"] for one in reversed(TOWERS) if one["config"]["model_type"] == "qwen3_vl"
)
EXPLICIT: dict[str, Any] = {
    "tokens_per_sequence": 1024,
    "tokens_per_image": 256,
    "hidden_size": 1024,
    "layers": [
        {
            "count": 24,
            "attention": {"num_attention_heads": 16, "attention_bias": True},
            "mlp": {"intermediate_size": 4096, "gated": False, "bias": True},
            "norm_bias": True,
        }
    ],
    "patches_per_token": 4,
    "patch_elements": 588,
    "projector": [[4096, 4096], [4096, 4096]],
}


def asked(client: Any, model: Any) -> dict[str, Any]:
    answer = client.post("/v1/predictions", json=changed(PREDICTION, "model", model))
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: Any, model: Any) -> dict[str, Any]:
    answer = client.post("/v1/predictions", json=changed(PREDICTION, "model", model))
    assert answer.status_code == 422, answer.text
    found: dict[str, Any] = answer.json()["errors"][0]
    return found


def test_a_config_counts_its_encoder_where_its_images_are_told(shared_client: Any) -> None:
    text = asked(shared_client, QWEN)
    both = asked(shared_client, {**QWEN, "encoder": {"tokens_per_sequence": 1024}})
    of_text, of_both = (each["catalogue"]["architecture"] for each in (text, both))
    assert of_text["text_tower"]
    assert not of_both["text_tower"]
    assert of_text["parameters"]["encoder"] == 0
    assert of_both["parameters"]["encoder"] == 576_388_336
    assert of_both["parameters"]["total"] == of_text["parameters"]["total"]
    assert any("4096 patches a sequence" in line for line in both["assumptions"])
    assert any("model.encoder.tokens_per_sequence" in line for line in text["assumptions"])
    seconds = [each["layouts"][0]["step_time_s"] for each in (text, both)]
    assert seconds[0] < seconds[1]


def test_no_tokens_of_images_leave_it_out(shared_client: Any) -> None:
    for model, images in ((QWEN, {}), (SHAPE, EXPLICIT)):
        none = {**model, "encoder": {**images, "tokens_per_sequence": 0}}
        assert asked(shared_client, none)["layouts"] == asked(shared_client, model)["layouts"]


def test_what_is_shown_of_a_model_with_an_encoder_means_the_same(shared_client: Any) -> None:
    for model in (
        {**QWEN, "encoder": {"tokens_per_sequence": 1024}},
        {**SHAPE, "encoder": EXPLICIT},
    ):
        first = asked(shared_client, model)
        shown = first["catalogue"]["architecture"]["model"]
        assert asked(shared_client, shown)["layouts"] == first["layouts"]


@pytest.mark.parametrize(
    ("encoder", "pointer", "words"),
    [
        ({}, "/model/encoder/tokens_per_sequence", "required"),
        ({"tokens_per_sequence": 9000}, "/model/encoder/tokens_per_sequence", "seq_len"),
        (
            {"tokens_per_sequence": 1024, "tokens_per_image": 9000},
            "/model/encoder/tokens_per_image",
            "seq_len",
        ),
        ({"tokens_per_sequence": 1024, "tokens": 1}, "/model/encoder/tokens", "unknown field"),
        (
            {"tokens_per_sequence": 1024, "projector_trained": False},
            "/model/encoder/projector_trained",
            "gradients pass the projector",
        ),
    ],
)
def test_what_is_wrong_with_images_is_named(
    shared_client: Any, encoder: dict[str, Any], pointer: str, words: str
) -> None:
    error = refused(shared_client, {**QWEN, "encoder": encoder})
    assert error["pointer"] == pointer
    assert words in error["rule"]


def test_what_is_wrong_with_an_explicit_encoder_is_named(shared_client: Any) -> None:
    sparse = {"moe": {"num_experts": 4, "experts_per_token": 1, "moe_intermediate_size": 8}}
    wrong = {**EXPLICIT, "layers": [{**EXPLICIT["layers"][0], "mlp": None, **sparse}]}
    error = refused(shared_client, {**SHAPE, "encoder": wrong})
    assert error["pointer"] == "/model/encoder/layers/0"
    assert "attention and an mlp" in error["rule"]


def test_an_encoder_without_its_config_is_asked_for(shared_client: Any) -> None:
    plain = {name: value for name, value in QWEN.items() if name != "vision_config"}
    error = refused(shared_client, {**plain, "encoder": {"tokens_per_sequence": 1024}})
    assert error["pointer"] == "/model/vision_config"
    assert "is required for an encoder" in error["rule"]


def test_a_model_of_the_catalogue_may_have_an_encoder(shared_client: Any) -> None:
    named = asked(shared_client, {"name": "llama-3.1-8b", "encoder": EXPLICIT})
    model = named["catalogue"]["architecture"]
    plain = asked(shared_client, "llama-3.1-8b")["catalogue"]["architecture"]
    assert model["parameters"]["encoder"] > 0
    assert model["parameters"]["total"] == plain["parameters"]["total"]
    again = asked(shared_client, model["model"])
    assert again["layouts"] == named["layouts"]
    error = refused(shared_client, {"name": "lama-3.1-8b", "encoder": EXPLICIT})
    assert error["pointer"] == "/model/name"
    assert "did you mean llama-3.1-8b" in error["rule"]


def test_an_encoder_that_is_not_known_is_refused(shared_client: Any) -> None:
    config = next(one["config"] for one in TOWERS if one["config"]["model_type"] == "llava")
    unknown = {**config, "vision_config": {"model_type": "dinov2"}}
    error = refused(shared_client, {**unknown, "encoder": {"tokens_per_sequence": 100}})
    assert error["pointer"] == "/model/vision_config/model_type"
    unread = {**config, "encoder": {"tokens_per_sequence": 100}, "model_type": "llava_next"}
    assert refused(shared_client, unread)["pointer"] == "/model/model_type"


def test_adapters_leave_the_encoder_frozen(shared_client: Any) -> None:
    adapters = changed(PREDICTION, "workload.lora", {"rank": 16})
    for images, status in (({}, 422), ({"trained": False, "projector_trained": False}, 201)):
        model = {**QWEN, "encoder": {"tokens_per_sequence": 1024, **images}}
        answer = shared_client.post("/v1/predictions", json=changed(adapters, "model", model))
        assert answer.status_code == status, answer.text

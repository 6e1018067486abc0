"""Launch configurations of stored answers over HTTP."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from models.spec import catalogue
from models.spec.switches import switches_of
from service.formats.launch.formats import FORMATS, LaunchFormat
from tests.long import one_in
from tests.service.asking import QUESTION, assert_problem, changed

DEEPSPEED = {**QUESTION, "stack": "deepspeed"}
SHARDED = {"dp_shard": 64, "zero_stage": 3, "recompute": "full"}
ACCELERATE = {**QUESTION, "stack": "fsdp"}
TEXTS = ["text/x-shellscript", "application/yaml", "text/x-python"]


def predicted(client: Any, question: dict[str, Any], *layouts: dict[str, Any]) -> Any:
    answer = client.post("/v1/predictions", json={**question, "layouts": [*layouts]}).json()
    assert "id" in answer, answer
    return answer


def launched(client: Any, id_: str, format_: str = "deepspeed", **more: Any) -> Any:
    return client.get(f"/v1/predictions/{id_}/launch/{format_}", **more)


def assert_wrong(response: Any, name: str, field: str) -> Any:
    problem = assert_problem(response, name)
    assert [error["field"] for error in problem["errors"]] == [field]
    return problem


def without_answer(launch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in launch.items() if name != "environment"}


def test_a_predicted_layout_is_launched(shared_client) -> None:
    made = predicted(shared_client, DEEPSPEED, SHARDED)
    found = launched(shared_client, made["id"]).json()
    assert found == made["launch"]
    assert found["settings"]["zero_optimization"]["stage"] == 3
    assert found["settings"]["train_batch_size"] == 128
    assert found["environment"] == {
        "SHARDWRIGHT_ID": f"prediction-{made['id']}",
        "SHARDWRIGHT_RANK": "1",
    }
    assert found["slurm"]["nodes"] == 8


def test_one_of_several_is_named_by_rank(shared_client) -> None:
    plain = {"dp_replicate": 64, "zero_stage": 0}
    made = predicted(shared_client, DEEPSPEED, SHARDED, plain)
    assert launched(shared_client, made["id"], params={"rank": 1}).json() == made["launch"]
    second = launched(shared_client, made["id"], params={"rank": 2}).json()
    assert second["settings"]["zero_optimization"]["stage"] == 0
    assert_wrong(launched(shared_client, made["id"]), "invalid", "rank")
    assert_wrong(launched(shared_client, made["id"], params={"rank": 3}), "invalid", "rank")
    assert_problem(launched(shared_client, made["id"], params={"speed": 1}), "invalid")


def test_a_recommended_layout_is_launched_unless_another_is_chosen(shared_client) -> None:
    asked = {**ACCELERATE, "constraints": {"recompute": ["none", "full"], "zero_stage": 3}}
    made = shared_client.post("/v1/recommendations", json=asked).json()
    address = f"/v1/recommendations/{made['id']}/launch/accelerate"
    found = shared_client.get(address).json()
    assert found == made["launch"]
    assert found["environment"] == {"SHARDWRIGHT_ID": f"recommendation-{made['id']}"}
    assert without_answer(
        shared_client.get(f"{address}?choice=recommended").json()
    ) == without_answer(found)
    fastest = shared_client.get(f"{address}?choice=fastest").json()
    first = shared_client.get(f"{address}?rank=1").json()
    assert without_answer(fastest) == without_answer(first)
    named = {"SHARDWRIGHT_ID": f"recommendation-{made['id']}"}
    assert fastest["environment"] == {**named, "SHARDWRIGHT_CHOICE": "fastest"}
    assert first["environment"] == {**named, "SHARDWRIGHT_RANK": "1"}
    assert_wrong(shared_client.get(f"{address}?choice=fastest&rank=1"), "invalid", "choice")


def test_the_form_is_that_of_the_accept_header(shared_client) -> None:
    made = predicted(shared_client, ACCELERATE, SHARDED)
    answers = {
        accept: launched(shared_client, made["id"], "accelerate", headers={"Accept": accept})
        for accept in ("*/*", *TEXTS)
    }
    settings = answers["*/*"].json()["settings"]
    assert yaml.safe_load(answers["application/yaml"].text) == settings
    for accept in TEXTS:
        assert answers[accept].headers["content-type"] == f"{accept}; charset=utf-8"
        assert "Accept" in answers[accept].headers["vary"]
        assert made["id"] in answers[accept].text
    script = answers["text/x-shellscript"].text
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert len({answer.headers["etag"] for answer in answers.values()}) == 4


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/yaml;q=0.5, text/x-python;q=0.8", "text/x-python"),
        ("text/*, application/json;q=0.9", "text/x-shellscript"),
        ("text/x-shellscript;q=0, */*", "application/json"),
        ("Application/YAML", "application/yaml"),
        ("", "application/json"),
        ("application/json;q=0.2, application/*;q=0.5", "application/yaml"),
    ],
)
def test_preferences_are_weighed(shared_client, accept: str, expected: str) -> None:
    made = predicted(shared_client, DEEPSPEED, SHARDED)
    found = launched(shared_client, made["id"], headers={"Accept": accept})
    assert found.headers["content-type"].partition(";")[0] == expected


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "text/html;q=x"])
def test_a_form_that_there_is_not_is_refused(shared_client, accept: str) -> None:
    made = predicted(shared_client, DEEPSPEED, SHARDED)
    refused = launched(shared_client, made["id"], headers={"Accept": accept})
    problem = assert_problem(refused, "not-acceptable")
    assert "Accept" in refused.headers["vary"]
    assert all(media_type in problem["detail"] for media_type in ("application/json", *TEXTS))


def test_what_the_client_has_is_not_sent_again(shared_client) -> None:
    made = predicted(shared_client, DEEPSPEED, SHARDED)
    tag = launched(shared_client, made["id"]).headers["etag"]
    again = launched(shared_client, made["id"], headers={"If-None-Match": tag})
    assert (again.status_code, again.headers["etag"]) == (304, tag)
    other = {"If-None-Match": tag, "Accept": "application/yaml"}
    assert launched(shared_client, made["id"], headers=other).status_code == 200


def test_what_a_framework_cannot_say_is_named_and_the_answer_stands(shared_client) -> None:
    question = {**ACCELERATE, "workload": {**QUESTION["workload"], "optimizer": "adamw_8bit"}}
    made = predicted(shared_client, {**question, "stack": "megatron"}, {"dp_shard": 64})
    assert made["launch"]["format"] == "megatron"
    assert "ask with one of adamw" in made["launch"]["error"]
    found = launched(shared_client, made["id"], "megatron")
    problem = assert_wrong(found, "invalid", "workload.optimizer")
    (error,) = problem["errors"]
    assert error["value"] == "adamw_8bit"
    assert "cannot be said in megatron" in error["rule"]


def test_formats_that_there_are_not_are_named(shared_client) -> None:
    made = predicted(shared_client, DEEPSPEED, SHARDED)
    problem = assert_wrong(launched(shared_client, made["id"], "slurm"), "unknown-name", "format")
    assert "accelerate" in problem["detail"]
    problem = assert_wrong(launched(shared_client, made["id"], "accelerate"), "invalid", "format")
    assert "ask for deepspeed" in problem["detail"]
    assert_problem(launched(shared_client, "none"), "not-found")


def test_stacks_without_a_format_have_no_launch(shared_client) -> None:
    made = predicted(shared_client, {**QUESTION, "stack": "generic"}, {"dp_shard": 64})
    assert made["launch"] is None
    assert_wrong(launched(shared_client, made["id"]), "invalid", "format")


def test_a_document_is_what_the_framework_reads(shared_client) -> None:
    made = predicted(shared_client, changed(DEEPSPEED, "cluster.num_chips", 16), {"dp_shard": 16})
    reading = {
        **{name: DEEPSPEED[name] for name in ("model",)},
        "cluster": {"preset": "h100"},
        "workload": {"seq_len": 8192},
        "launch": {"format": "deepspeed", "arguments": json.dumps(made["launch"]["settings"])},
    }
    again = shared_client.post("/v1/predictions", json=reading).json()
    assert again["layouts"][0]["layout"] == made["layouts"][0]["layout"]
    assert again["layouts"][0]["step_time_s"] == pytest.approx(made["layouts"][0]["step_time_s"])


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        ("fsdp", "fsdp"),
        ("fsdp", "pytorch-fsdp"),
        ("megatron", "megatron-lm"),
        ("deepspeed", "zero"),
    ],
)
def test_a_format_has_the_names_of_its_stacks_too(shared_client, stack: str, name: str) -> None:
    made = predicted(shared_client, {**QUESTION, "stack": stack}, {"dp_shard": 64, "zero_stage": 3})
    found = launched(shared_client, made["id"], name)
    assert found.status_code == 200, found.json()
    assert found.json() == made["launch"]


def test_a_stack_without_a_format_is_named_as_such(shared_client) -> None:
    made = predicted(shared_client, DEEPSPEED, SHARDED)
    problem = assert_wrong(launched(shared_client, made["id"], "generic"), "invalid", "format")
    assert "has no launch format" in problem["detail"]


def test_what_a_config_says_is_not_asked_for_again(shared_client) -> None:
    config = {
        "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "head_dim": 128,
        "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 151936, "tie_word_embeddings": False, "rope_theta": 1000000,
    }  # fmt: skip
    asked = {**QUESTION, "model": config}
    made = predicted(
        shared_client, {**asked, "stack": "megatron"}, {"dp_shard": 64, "zero_stage": 1}
    )
    assert made["launch"]["settings"]["--rotary-base"] == 1000000
    assert "--rotary-base" not in made["launch"]["placeholders"]
    for model, layer in ((config, "Qwen3DecoderLayer"), ("mixtral-8x7b", "MixtralDecoderLayer")):
        made = predicted(shared_client, {**asked, "model": model, "stack": "fsdp"}, SHARDED)
        fsdp = made["launch"]["settings"]["fsdp_config"]
        assert fsdp["fsdp_transformer_layer_cls_to_wrap"] == layer
        assert made["launch"]["placeholders"] == {}


def test_nodes_of_an_allocation_keep_the_order_of_ranks(shared_client) -> None:
    nodes = [
        {"name": name, "chips": 8, "leaf": leaf}
        for name, leaf in (("n4", "a"), ("n2", "b"), ("n1", "a"), ("n3", "b"))
    ]
    asked = {
        **QUESTION,
        "stack": "megatron",
        "cluster": {"preset": "h100"},
        "allocation": {"nodes": nodes},
        "model": "llama-3-8b",
        "constraints": {"use_all_chips": True},
    }
    made = shared_client.post("/v1/recommendations", json=asked).json()
    order = [host["node"] for host in made["allocation"]["hosts"]]
    assert made["launch"]["slurm"]["nodelist"] == ",".join(order) != "n1,n2,n3,n4"
    assert any("n4 (8)" in note for note in made["launch"]["notes"])
    address = f"/v1/recommendations/{made['id']}/launch/megatron"
    script = shared_client.get(address, headers={"Accept": "text/x-shellscript"}).text
    assert "--distribution=arbitrary" in script
    assert f"{' '.join(order)} > " in script
    assert f"MASTER_ADDR={order[0]}\n" in script


@pytest.mark.parametrize(
    ("stack", "layout"),
    [
        ("megatron", {"dp_shard": 32, "tp": 2}),
        ("megatron-bridge", {"dp_shard": 32, "tp": 2}),
        ("torchtitan", {"dp_shard": 32, "tp": 2, "zero_stage": 3}),
        ("maxtext", {"dp_shard": 64, "zero_stage": 3}),
        ("deepspeed", SHARDED),
        ("fsdp", SHARDED),
    ],
)
def test_a_launch_of_an_answer_may_be_sent_back(
    shared_client, stack: str, layout: dict[str, Any]
) -> None:
    asked = {**QUESTION, "stack": stack}
    made = predicted(shared_client, asked, layout)
    again = shared_client.post("/v1/predictions", json={**asked, "launch": made["launch"]})
    assert again.status_code == 201, again.json()
    assert again.json()["layouts"][0]["layout"] == made["layouts"][0]["layout"]
    settings = {name: made["launch"][name] for name in ("format", "settings")}
    again = shared_client.post("/v1/predictions", json={**asked, "launch": settings}).json()
    if stack != "fsdp":  # whose script has arguments of its own
        assert again["layouts"][0]["layout"] == made["layouts"][0]["layout"], again


@pytest.mark.parametrize(
    ("stack", "changes", "value", "cure"),
    [
        ("torchtitan", {"moe_graphs": "partial"}, "'partial'", "torchtitan 0.3.0 changes it"),
        ("maxtext", {"moe_graphs": "partial"}, "'partial'", "MaxText 0.2.5 changes it"),
        ("megatron", {"launch": "graph"}, "'graph'", "--cuda-graph-impl sets stack.moe_graphs"),
        ("torchtitan", {"overlap_data": False}, "False", "changes it; ask with true"),
    ],
)
def test_a_field_of_the_stack_that_nothing_says_is_refused(
    shared_client, stack: str, changes: dict[str, Any], value: str, cure: str
) -> None:
    asked = {**QUESTION, "model": "mixtral-8x7b", "stack": {"name": stack, **changes}}
    layout = {"dp_shard": 64, "zero_stage": 1 if stack == "megatron" else 3}
    made = predicted(shared_client, asked, layout)
    (field,) = changes
    error = made["launch"]["error"]
    assert error.startswith(f"stack.{field} = {value}: cannot be said in {stack}: ")
    assert cure in error
    assert "; ask with " in error
    assert_wrong(launched(shared_client, made["id"], stack), "invalid", f"stack.{field}")


@pytest.mark.parametrize("stack", ["deepspeed", "fsdp"])
def test_a_field_of_the_stack_may_be_left_to_a_script(shared_client, stack: str) -> None:
    changes = {"moe_graphs": "full", "static_experts": True, "fused": True}
    asked = {**QUESTION, "model": "mixtral-8x7b", "stack": {"name": stack, **changes}}
    launch = predicted(shared_client, asked, SHARDED)["launch"]
    for said in ("stack.moe_graphs full", "stack.fused true"):
        assert sum(said in note for note in launch["notes"]) == 1
    usual = predicted(shared_client, {**asked, "stack": stack}, SHARDED)["launch"]
    assert not any("stack." in note for note in usual["notes"])
    assert launch["settings"] == usual["settings"]


def test_what_arguments_say_beside_switches_is_launched(shared_client) -> None:
    context = {"dp_shard": 16, "cp": 4, "zero_stage": 1}
    asked = {**QUESTION, "stack": {"name": "megatron", "context": "ulysses"}}
    settings = predicted(shared_client, asked, context)["launch"]["settings"]
    assert settings["--cp-comm-type"] == ["a2a"]
    asked = {**QUESTION, "stack": {"name": "maxtext", "context": "ring"}}
    ring = {"dp_shard": 16, "cp": 4, "zero_stage": 3}
    made = predicted(shared_client, asked, ring)
    assert made["launch"]["settings"]["context_parallel_strategy"] == "ring"
    sent_back = {**asked, "stack": "maxtext", "launch": made["launch"]}
    again = shared_client.post("/v1/predictions", json=sent_back).json()
    assert again["layouts"][0]["step_time_s"] == made["layouts"][0]["step_time_s"]
    on_tpu = {**asked, "cluster": {"chip": "tpu-v5p", "num_chips": 64}}
    assert predicted(shared_client, on_tpu, ring)["launch"]["error"].startswith(
        "stack.context = 'ring'"
    )
    sharded = {"dp_shard": 64, "zero_stage": 3}
    for software in ({"launch": "eager", "loss": "compiled"}, {"launch": "graph", "fused": False}):
        asked = {**QUESTION, "stack": {"name": "torchtitan", **software}}
        settings = predicted(shared_client, asked, sharded)["launch"]["settings"]
        assert settings["compile.enable"] is True
        assert settings["compile.components"] == ["loss"]


@pytest.mark.parametrize(
    ("stack", "version", "changed_since"),
    [
        ("torchtitan", "0.2.0", ["loss.num_chunks"]),
        ("torchtitan", "0.2.0.post1", ["loss.num_chunks"]),
        ("megatron", "0.9.0", ["--attention-backend"]),
        ("megatron", "0.18.0", []),
    ],
)
def test_a_launch_of_an_earlier_release_says_that_it_is_of_today(
    shared_client, stack: str, version: str, changed_since: list[str]
) -> None:
    layout = {"dp_shard": 64, "zero_stage": 1 if stack == "megatron" else 3}
    asked = {**QUESTION, "stack": {"name": stack, "version": version}}
    launch = predicted(shared_client, asked, layout)["launch"]
    (note,) = [note for note in launch["notes"] if "which may lack some of them" in note]
    assert f"for {launch['framework']} {launch['version']}. The prediction is for" in note
    assert f" for {stack} {version}, which" in note
    changed = note.partition("The default of ")[2].removesuffix(" has changed since.")
    assert changed.split(", ") == (changed_since or [""])


@pytest.mark.parametrize("software", [{}, {"version": "0.3.0"}])
def test_a_launch_of_the_newest_release_is_as_it_is(
    shared_client, software: dict[str, str]
) -> None:
    asked = {**QUESTION, "stack": {"name": "torchtitan", **software}}
    launch = predicted(shared_client, asked, {"dp_shard": 64, "zero_stage": 3})["launch"]
    assert not any("which may lack some of them" in note for note in launch["notes"])


@pytest.mark.parametrize(
    ("stack", "age_years", "said"),
    [
        ("torchtitan", 0.7, "torchtitan 0.2.0"),
        ("deepspeed", 2.0, "deepspeed of 2 years earlier"),  # whose releases then are not dated
    ],
)
def test_a_launch_of_software_of_an_age_names_its_release(
    shared_client, stack: str, age_years: float, said: str
) -> None:
    asked = {**QUESTION, "stack": {"name": stack, "age_years": age_years}}
    launch = predicted(shared_client, asked, SHARDED)["launch"]
    assert any(f"The prediction is for {said}, which" in note for note in launch["notes"])


@pytest.mark.parametrize("format_", one_in(3, FORMATS.values()), ids=FORMATS)
def test_whatever_a_switch_is_set_to_is_launched_again(
    shared_client, format_: LaunchFormat
) -> None:
    """What is read of a launch leaves nothing unsaid in the launch of the answer."""
    stack = catalogue.stack(format_.stacks[0])
    asked = {**QUESTION, "model": "mixtral-8x7b"}
    layout = {"dp_shard": 64, "zero_stage": min(3, max(stack.zero_stages)), "recompute": "full"}
    layout |= {"ep": 8} if stack.max_ep > 1 else {}
    read = 0
    for switch in switches_of(stack):
        for value in dict.fromkeys(one.value for one in switch.settings):
            software = {"name": stack.id, switch.field: value}
            made = shared_client.post(
                "/v1/predictions", json={**asked, "stack": software, "layout": layout}
            )
            if made.status_code != 201 or "error" in made.json()["launch"]:
                continue
            sent_back = {**asked, "stack": stack.id, "launch": made.json()["launch"]}
            again = shared_client.post("/v1/predictions", json=sent_back)
            assert again.status_code == 201, again.json()
            assert "error" not in again.json()["launch"], (software, again.json()["launch"])
            read += 1
    assert read >= 3

"""Training logs as they are become reports: the step time a person would read, and what could not
be read."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.paths import SHARED
from tests.service.asking import (
    PREDICTION,
    QUESTION,
    REPORT,
    SHAPE,
    assert_problem,
    changed,
    without,
)

ADDRESS = "/v1/reports/logs"
FOLDER = SHARED / "training_logs"
needs_folder = pytest.mark.skipif(
    not FOLDER.exists(),
    reason="the collection of real training logs (shared/training_logs) is not beside the project",
)
TITAN = "".join(
    f"[rank0]:[titan] 2026-01-29 10:15:32,145 - root - INFO - step: {step:2d}  loss:  9.3  "
    f"memory: 48.91GiB(51.52%)  tps: {tps}\n"
    for step, tps in ((1, "512"), (10, "7,034"), (20, "7,022"), (30, "7,014"))
)
MEGATRON = """
------------------------ arguments ------------------------
  bf16 ............................................ True
  context_parallel_size ........................... 1
  data_parallel_size .............................. 8
  ffn_hidden_size ................................. 14336
  global_batch_size ............................... 128
  group_query_attention ........................... True
  hidden_size ..................................... 4096
  kv_channels ..................................... 128
  micro_batch_size ................................ 1
  num_attention_heads ............................. 32
  num_experts ..................................... None
  num_layers ...................................... 32
  num_query_groups ................................ 8
  padded_vocab_size ............................... 128256
  pipeline_model_parallel_size .................... 2
  recompute_granularity ........................... None
  seq_length ...................................... 8192
  sequence_parallel ............................... True
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 4
  untie_embeddings_and_output_weights ............. True
  use_distributed_optimizer ....................... True
  virtual_pipeline_model_parallel_size ............ None
  world_size ...................................... 64
-------------------- end of arguments ---------------------
""" + "".join(
    f" iteration {n:8d}/    1000 | consumed samples: {128 * n:12d} | elapsed time per iteration"
    f" (ms): {ms} | global batch size:   128 | lm loss: 1.2E+01 | number of skipped iterations:   0"
    " | number of nan iterations:   0 |\n"
    for n, ms in ((1, 20289.1), (2, 3101.0), (3, 3100.0), (4, 9800.0), (5, 3099.0), (6, 3102.0))
)
NEMO = (
    "Padded vocab_size: 50432, original vocab_size: 50257\nGLOBAL_RANK: 0, MEMBER: 1/16\nDLL"
    " 2025-06-11 01:54:41.446837 - PARAMETER cfg/micro_batch_size : 2  cfg/global_batch_size : 128 "
    " cfg/tensor_model_parallel_size : 2  cfg/pipeline_model_parallel_size : 1  cfg/num_layers : 32"
    "  cfg/hidden_size : 4096  cfg/ffn_hidden_size : 14336  cfg/num_attention_heads : 32 "
    " cfg/num_query_groups : 8  cfg/activation : fast-swiglu "
    " cfg/share_embeddings_and_output_weights : False  cfg/sequence_parallel : True  cfg/fp8 : True"
    "  cfg/optim/name : distributed_fused_adam  cfg/data/seq_length : 8192  cfg/precision :"
    " bf16-mixed \n"
    + "".join(
        f"DLL 2025-06-11 01:55:{10 + 4 * n}.0 - {n} reduced_train_loss : 11.1  train_step_timing in"
        " s : 4.0  epoch : 0 \n"
        for n in range(6)
    )
)
CLUSTER = {"cluster": {"preset": "h100"}, "stack": "megatron"}


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([9.0, 3.0], "1 of the 2 steps found (left out: 1 warm_up)"),
        ([0.1] * 5 + [3.0] * 7 + [9.0] * 3, None),
    ]
    + [([0.0] * 8 + [3.0] * 6, "6 of the 14 steps found (left out: 1 warm_up, 7 too_fast)")],
)
def test_a_step_time_that_rests_on_little_is_owned_up_to(
    client, times: list[float], said: str | None
) -> None:
    lines = [
        f" iteration {step:8d}/ 1000 | elapsed time per iteration (ms): {1000 * seconds} | global"
        " batch size: 128 |\n"
        for step, seconds in enumerate(times, 1)
    ]
    made = client.post(
        ADDRESS, json={**CLUSTER, "log": MEGATRON.split(" iteration ")[0] + "".join(lines)}
    )
    notes = made.json()["notes"]
    assert [note for note in notes if "rests on" in note] == notes
    assert (said in notes[0]) if said else not notes


def test_a_log_of_two_runs_says_that_the_last_was_read(client) -> None:
    def bars(total: int, seconds: int) -> str:
        return f"Total optimization steps = {total}\n" + "".join(
            f"\r  3%|# | {n}/{total} [00:{n * seconds:02d}<18:15, {seconds:5.2f}s/it]"
            for n in range(1, 9)
        )

    body = {**PREDICTION, "stack": "generic", "log": f"{bars(900, 4)}\n{bars(800, 2)}"}
    found = client.post(ADDRESS, json=body).json()
    assert found["reading"]["value"] == 2.0
    assert any("the log has 2 runs" in note for note in found["notes"])


def test_a_change_of_speed_is_owned_up_to(client) -> None:
    lines = [
        f" iteration {step:8d}/ 1000 | elapsed time per iteration (ms):"
        f" {3000 + step % 3 + 1200 * (step > 60)} | global batch size: 128 |\n"
        for step in range(1, 101)
    ]
    made = client.post(
        ADDRESS, json={**CLUSTER, "log": MEGATRON.split(" iteration ")[0] + "".join(lines)}
    )
    (note,) = made.json()["notes"]
    assert "changed for good (step_time_s: 3.001 from step 2, 4.201 from step 61)" in note
    assert made.json()["reading"]["value"] == pytest.approx(3.001, abs=1e-3)


def test_a_log_is_a_report_of_what_the_request_describes(client) -> None:
    made = client.post(ADDRESS, json={**PREDICTION, "log": TITAN})
    assert made.status_code == 201
    found = made.json()
    assert found["reading"]["framework"] == "torchtitan"
    assert (found["reading"]["steps_found"], found["reading"]["steps_used"]) == (4, 3)
    assert found["reading"]["left_out"] == {"warm_up": 1}
    report = found["report"]
    assert report["measured"]["tokens_per_s_per_chip"] == pytest.approx(7022)
    assert report["measured"]["step_time_s"] == pytest.approx(8192 * 128 / 64 / 7022)
    assert report["memory"]["reserved_gib"] == 48.91
    kept = client.get(made.headers["location"]).json()
    assert kept.pop("submission").count("tps") == 4
    assert kept == report


@pytest.mark.parametrize(
    ("vocabulary", "name"), [(128256, "llama-3-8b"), (128512, "llama-3-8b"), (50304, "custom-")]
)
def test_a_model_that_a_log_describes_has_the_name_of_one_that_is_the_same(
    client, vocabulary: int, name: str
) -> None:
    log = MEGATRON.replace(" 128256", f" {vocabulary}")
    catalogue = client.post(ADDRESS, json={**CLUSTER, "log": log}).json()["report"]["catalogue"]
    assert catalogue["architecture"]["name"].startswith(name)
    assert catalogue["architecture"]["source"] == "given"


UNNAMED = without({**SHAPE, "num_key_value_heads": 8}, "vocab_size")


def test_a_log_that_names_no_model_is_of_the_family_of_its_shape(client) -> None:
    """As reports are that describe it in other words, with its vocabulary as the tokenizer has
    it."""
    log = MEGATRON.replace(" 128256", " 50304")
    made = client.post(ADDRESS, json={**CLUSTER, "log": log}).json()["report"]
    for model in (UNNAMED, {**UNNAMED, "head_dim": 128}):
        report = changed(REPORT, "model", {**model, "vocab_size": 50257})
        report |= {
            "stack": "megatron",
            "layout": made["request"]["layout"],
            "measured": {"step_time_s": 3.1},
        }
        assert client.post("/v1/reports", json=report).status_code == 201
    other = changed(report, "model", {**UNNAMED, "vocab_size": 50257, "hidden_size": 8192})
    assert client.post("/v1/reports", json=other).status_code == 201
    name = made["catalogue"]["architecture"]["name"]
    families = client.get("/v1/reports/summary").json()["by"]["family"]
    assert {family: told["reports"] for family, told in families.items()} == {
        name: 3,
        min({*families} - {name}): 1,
    }
    drift = client.get("/v1/profiles/default/drift").json()["series"]
    assert sorted((series["family"] == name, series["runs"]) for series in drift) == [
        (False, 1),
        (True, 3),
    ]


def test_a_log_of_a_registered_model_is_of_its_family(client) -> None:
    model = {**UNNAMED, "vocab_size": 50257}
    assert (
        client.post(
            "/v1/catalog/architectures", json={"name": "acme-8b", "model": model}
        ).status_code
        == 201
    )
    found = client.post(
        ADDRESS, json={**CLUSTER, "log": MEGATRON.replace(" 128256", " 50304")}
    ).json()["report"]
    assert found["catalogue"]["architecture"]["name"] == "acme-8b"
    assert client.post("/v1/reports", json=changed(REPORT, "model", "acme-8b")).status_code == 201
    families = client.get("/v1/reports/summary").json()["by"]["family"]
    assert {family: told["reports"] for family, told in families.items()} == {"acme": 2}


def test_biases_of_queries_keys_and_values_are_not_of_the_output(client) -> None:
    """Of Qwen2.5-7B."""
    log = (
        MEGATRON.replace(" 4096", " 3584").replace(" 14336", " 18944").replace(" 128256", " 152064")
    )
    log = log.replace(
        "num_layers ...................................... 32", "num_layers ............ 28"
    )
    log = log.replace(
        "num_attention_heads ............................. 32", "num_attention_heads ... 28"
    )
    log = log.replace(
        "num_query_groups ................................ 8", "num_query_groups ...... 4"
    )
    log = log.replace(
        "  bf16 ...", "  add_bias_linear ....... False\n  add_qkv_bias .......... True\n  bf16 ..."
    )
    found = client.post(ADDRESS, json={**CLUSTER, "log": log}).json()["report"]
    assert found["catalogue"]["architecture"]["name"] == "qwen2.5-7b"


def test_the_parameters_of_a_nemo_log_say_what_ran(client) -> None:
    found = client.post(ADDRESS, json={**changed(CLUSTER, "stack", "nemo"), "log": NEMO}).json()
    assert found["reading"]["from_arguments"] == ["layout", "model", "num_chips", "workload"]
    request = found["report"]["request"]
    assert (request["cluster"]["num_chips"], request["workload"]["precision"]) == (16, "fp8")
    assert (
        request["layout"]["tp"],
        request["layout"]["dp_shard"],
        request["layout"]["micro_batch"],
    ) == (2, 8, 2)
    other = {**CLUSTER, "log": NEMO, "layout": {"tp": 4, "dp_shard": 4, "zero_stage": 1}}
    assert "ran tp = 2 where the request has 4" in client.post(ADDRESS, json=other).text


def test_parameters_that_say_too_little_matter_only_where_they_are_needed(client) -> None:
    log = NEMO.replace("cfg/num_layers : 32", "cfg/layers : 32")
    refused = client.post(ADDRESS, json={**CLUSTER, "log": log})
    assert_problem(refused, "invalid")
    assert "num_layers" in refused.text
    layout = {"tp": 2, "dp_shard": 8, "zero_stage": 1, "micro_batch": 2}
    body = {
        **changed(QUESTION, "cluster.num_chips", 16),
        "stack": "megatron",
        "layout": layout,
        "log": log,
    }
    refused = client.post(ADDRESS, json=body)
    assert "ran precision = fp8 where the request has bf16" in refused.text
    found = client.post(ADDRESS, json=changed(body, "workload.precision", "fp8")).json()
    assert found["reading"]["from_arguments"] == ["workload"]


def test_a_report_is_dated_by_its_log(client) -> None:
    found = client.post(ADDRESS, json={**PREDICTION, "log": TITAN}).json()
    assert (found["measured_at_from"], found["report"]["measured_at"]) == (
        "log",
        "2026-01-29T10:15:32Z",
    )
    said = {**PREDICTION, "log": TITAN, "measured_at": "2024-05-06T07:08:09+02:00"}
    found = client.post(ADDRESS, json=said).json()
    assert (found["measured_at_from"], found["report"]["measured_at"]) == (
        "request",
        "2024-05-06T07:08:09+02:00",
    )
    undated = TITAN.replace("2026-01-29 10:15:32,145 - ", "")
    found = client.post(ADDRESS, json={**PREDICTION, "log": undated}).json()
    assert found["measured_at_from"] == "arrival"
    measured, created = (
        datetime.fromisoformat(found["report"][name]) for name in ("measured_at", "created_at")
    )
    assert abs(created - measured) < timedelta(minutes=1)
    assert (
        len(
            client.get("/v1/reports?since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00Z").json()[
                "items"
            ]
        )
        == 1
    )


@pytest.mark.parametrize(
    ("year", "why"), [("1970", "before 2015"), ("2014", "before 2015"), ("2998", "in the future")]
)
def test_a_date_that_cannot_be_is_ignored_and_said(client, year: str, why: str) -> None:
    found = client.post(
        ADDRESS, json={**PREDICTION, "log": TITAN.replace("2026-", f"{year}-")}
    ).json()
    assert found["measured_at_from"] == "arrival"
    assert found["report"]["measured_at"] > "2025"
    (note,) = found["notes"]
    assert why in note
    assert year in note


def test_a_clock_of_a_zone_further_east_measures_nothing_in_the_future(client) -> None:
    ahead = (datetime.now(UTC) + timedelta(hours=9)).strftime("%Y-%m-%d %H:%M:%S")
    found = client.post(
        ADDRESS, json={**PREDICTION, "log": TITAN.replace("2026-01-29 10:15:32", ahead)}
    ).json()
    assert found["measured_at_from"] == "log"
    assert datetime.fromisoformat(found["report"]["measured_at"]) <= datetime.now(UTC)


def test_the_software_of_a_log_is_as_old_as_its_date(client) -> None:
    report = client.post(ADDRESS, json={**CLUSTER, "log": NEMO}).json()["report"]
    assert report["request"]["stack"] == {"name": "megatron", "age_years": 1.14}
    assert any("as old as measured_at, 2025-06" in line for line in report["assumptions"])
    undated = MEGATRON  # which arrives now
    assert (
        client.post(ADDRESS, json={**CLUSTER, "log": undated}).json()["report"]["request"]["stack"]
        == "megatron"
    )


@needs_folder
@pytest.mark.parametrize("name", ["nemo-llama3-70b-64xb200.log", "nemo-llama3-8b-8xb200.log"])
def test_a_real_log_of_older_software_is_as_fast_as_predicted(client, name: str) -> None:
    body = {"cluster": {"preset": "b200"}, "stack": "megatron", "log": (FOLDER / name).read_text()}
    report = client.post(ADDRESS, json=body).json()["report"]
    assert abs(report["residual"]) < 0.06
    assert report["flag"] is None


def test_the_same_lines_make_one_report(client) -> None:
    body = {**PREDICTION, "log": TITAN}
    first, again = (client.post(ADDRESS, json=body) for _ in range(2))
    assert first.json() == {**again.json(), "repeated": False}
    assert again.json()["repeated"]
    assert again.headers["location"] == first.headers["location"]
    assert [answer.headers.get("idempotency-replayed") for answer in (first, again)] == [
        None,
        "true",
    ]
    for log in (TITAN + "\n", "\ufeff\n" + TITAN, TITAN.replace("\n", "\r\n")):
        assert client.post(ADDRESS, json={**body, "log": log}).json() == again.json()
    other = client.post(ADDRESS, json={**body, "log": TITAN[: TITAN.rstrip().rindex("\n")]}).json()
    assert other["report"]["id"] != first.json()["report"]["id"]
    assert len(client.get("/v1/reports").json()["items"]) == 2


def test_a_log_of_the_same_run_in_other_words_makes_no_other_report(client) -> None:
    body = {**PREDICTION, "log": TITAN}
    first = client.post(ADDRESS, json=body).json()["report"]["id"]
    turned = dict(reversed(body.items()))
    aliased = changed(body, "stack", "titan")
    named = changed(
        body,
        "stack",
        {"name": body["stack"] if isinstance(body["stack"], str) else body["stack"]["name"]},
    )
    cluster = {name: value for name, value in body["cluster"].items() if name != "preset"}
    by_chip = changed(body, "cluster", {**cluster, "chip": body["cluster"]["preset"]})
    others = (
        turned,
        aliased,
        named,
        by_chip,
        {**body, "source": "me"},
        {**body, "framework": "torchtitan"},
    )
    for other in others:
        found = client.post(ADDRESS, json=other).json()
        assert (found["repeated"], found["report"]["id"]) == (True, first), other.keys()
    dated = client.post(ADDRESS, json={**body, "measured_at": "2026-01-31T12:00:00Z"}).json()
    assert dated["repeated"]
    assert any(
        "withdraw it to send the log with another measured_at" in note for note in dated["notes"]
    )
    crashed = client.post(ADDRESS, json={**body, "outcome": "crashed"}).json()
    assert not crashed["repeated"]


def test_a_log_whose_report_was_withdrawn_makes_a_new_one(client) -> None:
    body = {**PREDICTION, "log": TITAN}
    first = client.post(ADDRESS, json=body)
    client.delete(first.headers["location"])
    again = client.post(ADDRESS, json=body)
    assert not again.json()["repeated"]
    assert again.headers["location"] != first.headers["location"]


def test_many_posts_of_a_log_at_once_make_one_report(client) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = [
            *pool.map(lambda _: client.post(ADDRESS, json={**PREDICTION, "log": TITAN}), range(4))
        ]
    assert sorted(answer.json()["repeated"] for answer in made) == [False, True, True, True]
    assert len({answer.headers["location"] for answer in made}) == 1


def test_a_log_of_another_framework_is_of_another_run(client) -> None:
    prediction = client.post("/v1/predictions", json={**PREDICTION, "stack": "megatron"}).json()
    refused = client.post(ADDRESS, json={"prediction_id": prediction["id"], "log": TITAN})
    assert refused.status_code == 422
    assert "is of torchtitan, and the run that it should be of has stack megatron" in refused.text


def test_a_log_belongs_to_a_prediction(client) -> None:
    prediction = client.post("/v1/predictions", json=PREDICTION).json()
    report = client.post(
        ADDRESS, json={"prediction_id": prediction["id"], "log": TITAN, "source": "us"}
    ).json()["report"]
    assert report["prediction"] == prediction["layouts"][0]
    assert report["source"] == "us"


def test_the_arguments_of_a_megatron_log_say_what_ran(client) -> None:
    found = client.post(ADDRESS, json={**CLUSTER, "log": MEGATRON}).json()
    assert found["reading"]["value"] == pytest.approx(3.1005)
    assert found["reading"]["left_out"] == {"warm_up": 1, "slow": 1}
    assert found["reading"]["from_arguments"] == ["layout", "model", "num_chips", "workload"]
    request = found["report"]["request"]
    assert request["cluster"]["num_chips"] == 64
    assert request["workload"]["seq_len"] == 8192
    layout = request["layout"]
    assert (layout["tp"], layout["pp"], layout["dp_shard"], layout["zero_stage"]) == (4, 2, 8, 1)
    assert layout["sequence_parallel"]
    assert found["report"]["catalogue"]["architecture"]["parameters"]["total"] == 8030261248


def test_a_log_without_sequence_parallelism_shows_what_its_stack_can_do(client) -> None:
    log = MEGATRON.replace(
        "sequence_parallel ............................... True", "sequence_parallel ... False"
    )
    found = client.post(ADDRESS, json={**CLUSTER, "log": log}).json()["report"]
    assert not found["request"]["layout"]["sequence_parallel"]
    assert found["request"]["layout"]["tp"] == 4


_SWITCHES = """
  attention_backend ............................... AttnBackend.unfused
  cross_entropy_loss_fusion ....................... False
  grad_reduce_in_bf16 ............................. True
  moe_token_dispatcher_type ....................... allgather
  overlap_grad_reduce ............................. False
  overlap_param_gather ............................ False
  tp_comm_overlap ................................. False
-------------------- end of arguments"""


def test_the_switches_of_a_megatron_log_are_those_of_its_stack(client) -> None:
    """But of experts, which the model does not have; and what the request says goes before."""
    log = MEGATRON.replace("\n-------------------- end of arguments", _SWITCHES)
    found = client.post(ADDRESS, json={**CLUSTER, "log": log}).json()["report"]
    shown = {
        "attention_kernel": "unfused", "loss": "stepwise", "gradient_bytes": 2,
        "overlap_data": False, "overlap_tensor": False,
    }  # fmt: skip
    assert found["request"]["stack"] == {"name": "megatron", **shown}
    body = {**CLUSTER, "stack": {"name": "megatron", "overlap_data": True}, "log": log}
    found = client.post(ADDRESS, json=body).json()["report"]
    assert found["request"]["stack"] == {"name": "megatron", **shown, "overlap_data": True}


def test_switches_hold_of_older_software_too(client) -> None:
    """Which did not hide experts' traffic by itself, nor send a token once to a domain."""
    arguments = {
        "num_experts": 8, "moe_router_topk": 2, "moe_token_dispatcher_type": "flex",
        "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1,
        "overlap_moe_expert_parallel_comm": True,
    }  # fmt: skip
    dense = "num_experts ..................................... None"
    sparse = MEGATRON.replace(
        dense, "\n  ".join(f"{name} ..... {value}" for name, value in arguments.items())
    )
    body = {**CLUSTER, "log": sparse, "measured_at": "2025-01-15T00:00:00Z"}
    stack = client.post(ADDRESS, json=body).json()["report"]["request"]["stack"]
    assert (stack["dispatcher"], stack["overlap_expert"]) == ("deduplicated", True)


def test_switches_that_cannot_be_read_are_none(client) -> None:
    odd = _SWITCHES.replace(
        "overlap_grad_reduce ............................. False", "overlap_grad_reduce ... 1"
    )
    log = MEGATRON.replace("\n-------------------- end of arguments", odd)
    assert client.post(ADDRESS, json={**CLUSTER, "log": log}).status_code == 201


def test_switches_count_beside_a_layout_that_the_request_gives(client) -> None:
    log = MEGATRON.replace("\n-------------------- end of arguments", _SWITCHES)
    first = client.post(ADDRESS, json={**CLUSTER, "log": log}).json()
    whole = {
        **CLUSTER,
        **{name: first["report"]["request"][name] for name in ("model", "workload", "layout")},
    }
    again = client.post(ADDRESS, json={**whole, "log": log}).json()
    assert again["repeated"]
    assert again["report"]["id"] == first["report"]["id"]


def test_a_log_is_dated_by_the_lines_around_its_steps(client) -> None:
    lines = "".join(
        f"[NeMo I 2026-01-2{n} 01:00:00 nemo_logging:393] saved\nTraining epoch 0 | global_step:"
        f" {n} | reduced_train_loss: 11.0 | train_step_timing in s: 4.0\n"
        for n in range(1, 7)
    )
    described = {**PREDICTION, "stack": "megatron"}
    found = client.post(ADDRESS, json={**described, "log": lines}).json()
    assert (found["measured_at_from"], found["report"]["measured_at"][:10]) == ("log", "2026-01-26")


def test_switches_as_the_stack_has_them_change_nothing(client) -> None:
    on = _SWITCHES.replace("False", "True").replace("AttnBackend.unfused", "AttnBackend.auto")
    log = MEGATRON.replace(
        "\n-------------------- end of arguments", on.replace("bf16 ...", "bf16_not ...")
    )
    assert (
        client.post(ADDRESS, json={**CLUSTER, "log": log}).json()["report"]["request"]["stack"]
        == "megatron"
    )


def test_switches_that_are_not_those_of_what_a_log_is_linked_to_are_told(client) -> None:
    body = {**QUESTION, "cluster": {"preset": "h100", "num_chips": 64}, "stack": "megatron"}
    layout = {"tp": 4, "pp": 2, "dp_shard": 8, "zero_stage": 1, "sequence_parallel": True}
    asked = {
        **body,
        "workload": {"seq_len": 8192, "global_batch": 128},
        "model": "llama-3-8b",
        "layout": layout,
    }
    prediction = client.post("/v1/predictions", json=asked).json()
    log = MEGATRON.replace("\n-------------------- end of arguments", _SWITCHES)
    answer = client.post(ADDRESS, json={"prediction_id": prediction["id"], "log": log}).json()
    assert (
        "it ran with stack.overlap_tensor = False where what it is linked to has True"
        in answer["notes"]
    )


def test_what_the_request_says_goes_before_the_arguments(client) -> None:
    body = {**CLUSTER, "model": "llama-3.1-8b", "log": MEGATRON}
    assert client.post(ADDRESS, json=body).json()["report"]["request"]["model"] == "llama-3-8b"


@pytest.mark.parametrize(
    ("said", "value", "rule"),
    [
        (
            {"workload": {"seq_len": 4096, "global_batch": 128}},
            8192,
            "ran seq_len = 8192 where the request has 4096",
        ),
        (
            {"layout": {"tp": 8, "dp_shard": 8, "zero_stage": 1}},
            4,
            "ran tp = 4 where the request has 8",
        ),
        ({"model": "llama-3-70b"}, 32, "ran num_layers = 32 where the request has 80"),
    ],
)
def test_a_log_that_contradicts_the_request_is_refused(
    client, said: dict[str, object], value: int, rule: str
) -> None:
    problem = assert_problem(
        client.post(ADDRESS, json={**CLUSTER, **said, "log": MEGATRON}), "invalid", "/log"
    )
    assert problem["errors"][0]["value"] == value
    assert rule in problem["errors"][0]["rule"]


def test_a_log_that_contradicts_what_it_is_linked_to_is_refused(client) -> None:
    layout = {"tp": 8, "dp_shard": 8, "zero_stage": 1, "sequence_parallel": True}
    question = {**QUESTION, "stack": "megatron", "layout": layout}
    prediction = client.post("/v1/predictions", json=question).json()["id"]
    problem = assert_problem(
        client.post(ADDRESS, json={"prediction_id": prediction, "log": MEGATRON}), "invalid", "/log"
    )
    assert "ran tp = 4 where what it is linked to has 8" in problem["errors"][0]["rule"]


def test_a_log_of_another_batch_is_not_of_the_run(client) -> None:
    steps = MEGATRON.split("end of arguments")[1]
    body = {**PREDICTION, "stack": "megatron", "log": steps}
    other = {**body, "workload": {"seq_len": 8192, "global_batch": 256}}
    problem = assert_problem(client.post(ADDRESS, json=other), "invalid", "/log")
    assert problem["errors"][0]["value"] == 128
    assert "steps of 128 sequences" in problem["errors"][0]["rule"]
    assert client.post(ADDRESS, json=body).json()["reading"]["global_batch"] == 128


def ramp_up() -> str:
    def line(step: int, batch: int, ms: float) -> str:
        return (
            f" iteration {step:4d}/ 1000 | elapsed time per iteration (ms): {ms} | global batch"
            f" size: {batch} |\n"
        )

    return "".join(
        [line(k, 32, 800.0) for k in range(1, 61)]
        + [line(k, 128, 3100.0 + k % 3) for k in range(61, 91)]
    )


@pytest.mark.parametrize("linked", [True, False])
def test_a_ramp_up_is_a_run_of_the_batch_that_it_leads_to(client, linked: bool) -> None:
    question = {**PREDICTION, "stack": "megatron"}
    made = (
        {"prediction_id": client.post("/v1/predictions", json=question).json()["id"]}
        if linked
        else question
    )
    found = client.post(ADDRESS, json={**made, "log": ramp_up()}).json()
    assert (found["reading"]["global_batch"], found["reading"]["left_out"]) == (
        128,
        {"other_batch": 60},
    )
    assert found["report"]["measured"]["step_time_s"] == pytest.approx(3.1, rel=1e-3)
    (note,) = found["notes"]
    assert "rests on 30 of the 90 steps found (left out: 60 other_batch)" in note


def maxtext(seconds: float, rate: float) -> str:
    return "".join(
        f"completed step: {step}, seconds: {seconds}, TFLOP/s/device: 190.0, Tokens/s/device:"
        f" {rate}, loss: 9.7\n"
        for step in range(4)
    )


def test_a_log_of_another_number_of_tokens_is_not_of_the_run(client) -> None:
    """It prints no batch, but tokens per second beside the seconds."""
    tokens = 8192 * 128 / 64
    body = {**PREDICTION, "stack": "maxtext"}
    for factor in (0.5, 0.94, 1.06, 2):
        other = {**body, "log": maxtext(2.5, factor * tokens / 2.5)}
        problem = assert_problem(client.post(ADDRESS, json=other), "invalid", "/log")
        assert "the run that it should be of has 16384" in problem["errors"][0]["rule"]
    for log in (maxtext(2.5, tokens / 2.5), maxtext(2.5, 0.97 * tokens / 2.5)):
        assert (
            client.post(ADDRESS, json={**body, "log": log}).json()["report"]["measured"][
                "step_time_s"
            ]
            == 2.5
        )


def test_a_run_that_died_later_tells_its_speed_and_that_it_did_not_fit(client) -> None:
    log = TITAN + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = client.post(ADDRESS, json={**PREDICTION, "log": log}).json()
    assert found["reading"]["out_of_memory"]
    assert found["report"]["outcome"] == "out_of_memory"
    assert found["report"]["measured"]["tokens_per_s_per_chip"] == pytest.approx(
        found["reading"]["value"]
    )
    assert found["report"]["residual"] is not None
    assert client.get("/v1/profiles/default/drift").json()["runs"] == 1


OTHERS_HELD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    " capacity of 79.11 GiB of which 1.07 GiB is free. Process 4711 has 60.50 GiB memory in use."
    " Including non-PyTorch memory, this process has 17.50 GiB memory in use. Of the allocated"
    " memory 16.25 GiB is allocated by PyTorch\n"
)
EVALUATION = (
    'Traceback (most recent call last):\n  File "/opt/train.py", line 5, in evaluation_loop\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


@pytest.mark.parametrize("outcome", [None, "out_of_memory"])
@pytest.mark.parametrize(
    ("log", "said"),
    [
        (OTHERS_HELD, "other processes held 60.5 of 79.1 GiB"),
        (TITAN + EVALUATION, "an evaluation ran out of memory"),
    ],
)
def test_memory_that_ran_out_for_another_reason_leaves_out_no_layout(
    client, log: str, said: str, outcome: str | None
) -> None:
    found = client.post(ADDRESS, json={**PREDICTION, "log": log, "outcome": outcome}).json()
    assert found["report"]["outcome"] == "crashed"
    assert found["report"]["flag"] is None
    (note,) = [note for note in found["notes"] if said in note]
    assert note.endswith("so that no layout is left out for it")
    question = {name: PREDICTION[name] for name in ("model", "cluster", "workload", "stack")}
    answer = client.post("/v1/recommendations", json=question).json()
    assert answer["out_of_memory"] == []


def test_a_run_that_was_tried_again_and_trained_did_fit(client) -> None:
    """The log of both, one after the other."""
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n" + TITAN
    found = client.post(ADDRESS, json={**PREDICTION, "log": log}).json()
    assert not found["reading"]["out_of_memory"]
    assert found["report"]["outcome"] == "ok"


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        (
            "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out"
            " of memory'"
        ),
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 1.25G. That was not possible.",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.0GiB",
        "RuntimeError: CUDA driver error: out of memory",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        "common/util/cuda_driver.cpp:60 in function f: CUDA Error: out of memory",
        "RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58",
        "Error out of memory at line 380 in file /src/csrc/pythonInterface.c",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    ],
)
def test_out_of_memory_has_many_words(client, line: str) -> None:
    for log in (TITAN + line, line):
        report = client.post(ADDRESS, json={**PREDICTION, "log": log}).json()["report"]
        assert report["outcome"] == "out_of_memory"


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't"
        " allocate memory: you tried to allocate 128849018880 bytes.",
        "OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 30.0 GiB for an array",
        "MemoryError",
    ],
)
def test_the_memory_of_a_host_is_not_that_of_a_device(client, line: str) -> None:
    for log in (TITAN + line, line):
        found = client.post(ADDRESS, json={**PREDICTION, "log": log}).json()
        assert found["report"]["outcome"] == "crashed"
        assert any("the memory of a host was full" in note for note in found["notes"])


@pytest.mark.parametrize(
    "line",
    ["java.lang.OutOfMemoryError: Java heap space", "except MemoryError:", "Out of memory budget"],
)
def test_other_words_on_memory_are_of_neither(client, line: str) -> None:
    found = client.post(ADDRESS, json={**PREDICTION, "log": TITAN + line}).json()
    assert (found["report"]["outcome"], found["notes"]) == ("ok", [])


def test_a_log_of_a_run_that_did_not_fit_is_no_slow_run(client) -> None:
    log = "loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = client.post(ADDRESS, json={**PREDICTION, "log": log}).json()
    assert found["reading"] is None
    assert found["report"]["outcome"] == "out_of_memory"
    assert found["report"]["residual"] is None


def test_a_log_that_ends_in_a_crash_is_of_a_run_that_crashed(client) -> None:
    crash = "Traceback (most recent call last):\n  File train.py, line 3\nValueError: no data\n"
    report = client.post(ADDRESS, json={**PREDICTION, "log": TITAN + crash}).json()["report"]
    assert (report["outcome"], report["measured"]["tokens_per_s_per_chip"]) == ("crashed", 7022)
    stopped = "Traceback (most recent call last):\n  File train.py, line 3\nKeyboardInterrupt\n"
    for end in (stopped, crash + TITAN):
        report = client.post(ADDRESS, json={**PREDICTION, "log": TITAN + end}).json()["report"]
        assert report["outcome"] == "ok"


@pytest.mark.parametrize("outcome", ["crashed", "aborted", "out_of_memory"])
def test_an_end_that_the_log_does_not_show_may_be_said(client, outcome: str) -> None:
    after_some = client.post(ADDRESS, json={**PREDICTION, "log": TITAN, "outcome": outcome}).json()[
        "report"
    ]
    assert (after_some["outcome"], after_some["measured"]["tokens_per_s_per_chip"]) == (
        outcome,
        pytest.approx(7022),
    )
    at_once = client.post(
        ADDRESS, json={**PREDICTION, "log": "slurmstepd: killed\n", "outcome": outcome}
    ).json()
    assert at_once["reading"] is None
    assert (at_once["report"]["outcome"], at_once["report"]["measured"]) == (outcome, None)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"log": ""}, "/log"),
        ({"log": "nothing here\n" * 100}, "/log"),
        ({"log": TITAN + MEGATRON}, "/log"),
        ({"log": TITAN.replace("7,0", "nan ")}, "/log"),
        ({"log": "\x01\x02" * 1000}, "/log"),
        ({"log": "x" * 3_000_000}, "/log"),
        ({"framework": "abacus"}, "/framework"),
        ({"framework": "maxtext"}, "/log"),
        ({"stack": "nobody"}, "/stack"),
        ({"outcome": "fine"}, "/outcome"),
        (
            {"outcome": "crashed", "log": f"{TITAN}torch.OutOfMemoryError: CUDA out of memory."},
            "/outcome",
        ),
    ],
)
def test_what_is_wrong_with_a_log_is_named(
    shared_client, change: dict[str, Any], pointer: str
) -> None:
    answer = shared_client.post(ADDRESS, json={**PREDICTION, "log": TITAN, **change})
    assert_problem(answer, "unknown-name" if "stack" in change else "invalid", pointer)


def test_what_a_log_does_not_say_is_required(shared_client) -> None:
    body = {**PREDICTION, "log": TITAN}
    assert_problem(
        shared_client.post(ADDRESS, json=without(body, "workload")), "invalid", "/workload"
    )
    assert_problem(shared_client.post(ADDRESS, json={"log": MEGATRON}), "invalid", "/cluster")
    broken = changed(
        {**CLUSTER, "log": MEGATRON}, "log", MEGATRON.replace("  num_layers ", "  layers_num ")
    )
    problem = assert_problem(shared_client.post(ADDRESS, json=broken), "invalid")
    assert problem["errors"][0]["field"] == "log.arguments.num_layers"


@pytest.mark.parametrize(
    ("line", "instead", "field"),
    [
        (
            "num_attention_heads ............................. 32",
            "num_attention_heads ... 70000",
            "num_attention_heads",
        ),
        (
            "hidden_size ..................................... 4096",
            "hidden_size ... 999999999",
            "hidden_size",
        ),
    ],
)
def test_arguments_beyond_all_reports_are_refused(
    client, line: str, instead: str, field: str
) -> None:
    assert line in MEGATRON
    answer = client.post(ADDRESS, json={**CLUSTER, "log": MEGATRON.replace(line, instead)})
    problem = assert_problem(answer, "invalid", "/log")
    assert field in problem["errors"][0]["rule"]


def test_figures_beyond_all_reports_are_refused(client) -> None:
    log = TITAN.replace("7,0", "70000000000000000,0")
    assert_problem(client.post(ADDRESS, json={**PREDICTION, "log": log}), "invalid", "/log")


@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        (
            "num_layers ...................................... 32",
            "num_layers ... 80",
            "num_layers = 80",
        ),
        (
            "data_parallel_size .............................. 8",
            "data_parallel_size ... 16",
            "chips = 128",
        ),
        (
            "  bf16 ............................................ True",
            "  fp16 ... True",
            "precision = fp16",
        ),
        (
            "hidden_size ..................................... 4096",
            "hidden_size ... 999999999",
            "hidden_size = 999999999",
        ),
    ],
)
def test_a_log_of_another_run_is_not_what_it_is_linked_to(
    client, line: str, instead: str, rule: str
) -> None:
    layout = {"tp": 4, "pp": 2, "dp_shard": 8, "zero_stage": 1, "sequence_parallel": True}
    question = {**QUESTION, "stack": "megatron", "layout": layout}
    prediction = client.post("/v1/predictions", json=question).json()["id"]
    assert (
        client.post(ADDRESS, json={"prediction_id": prediction, "log": MEGATRON}).status_code == 201
    )
    assert line in MEGATRON
    other = MEGATRON.replace(line, instead)
    if "chips" in rule:
        other = other.replace(
            "world_size ...................................... 64", "world_size ... 128"
        )
    problem = assert_problem(
        client.post(ADDRESS, json={"prediction_id": prediction, "log": other}), "invalid", "/log"
    )
    assert rule in problem["errors"][0]["rule"]


DUMP = MEGATRON.split(" iteration ")[0]
OUT_OF_MEMORY = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.\n"
CRASH = "Traceback (most recent call last):\nRuntimeError: NCCL error: unhandled system error\n"


@pytest.mark.parametrize(
    ("end", "said", "outcome"),
    [
        (OUT_OF_MEMORY, None, "out_of_memory"),
        (CRASH, None, "crashed"),
        ("slurmstepd: killed\n", "crashed", "crashed"),
        ("slurmstepd: killed\n", "aborted", "aborted"),
    ],
)
def test_the_arguments_of_a_run_that_failed_before_its_first_step_say_what_ran(
    client, end: str, said: str | None, outcome: str
) -> None:
    body = {**CLUSTER, "log": DUMP + end} | ({"outcome": said} if said else {})
    found = client.post(ADDRESS, json=body).json()
    assert found["reading"] is None
    assert (found["report"]["outcome"], found["report"]["measured"]) == (outcome, None)
    (note,) = found["notes"]
    assert "its arguments say what ran (layout, model, num_chips, workload)" in note
    request = found["report"]["request"]
    assert (request["model"]["num_layers"], request["cluster"]["num_chips"]) == (32, 64)
    layout = request["layout"]
    assert (layout["tp"], layout["pp"], layout["dp_shard"], layout["zero_stage"]) == (4, 2, 8, 1)


def test_a_dump_alone_is_no_report(client) -> None:
    problem = assert_problem(client.post(ADDRESS, json={**CLUSTER, "log": DUMP}), "invalid", "/log")
    assert "if the run failed before its first step, say so" in problem["errors"][0]["rule"]


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ({"model": "llama-2-7b"}, "ran num_key_value_heads = 8 where the request has 32"),
        ({"model": "llama-3-70b"}, "ran num_layers = 32 where the request has 80"),
        ({"layout": {"tp": 8, "dp_shard": 8, "zero_stage": 1}}, "ran tp = 4 where the request has"),
        (
            {"layout": {"tp": 4, "pp": 2, "dp_shard": 8, "zero_stage": 3}},
            "ran zero_stage = 1 where the request has 3",
        ),
        (
            {"workload": {"seq_len": 8192, "global_batch": 128, "precision": "fp8"}},
            "ran precision = bf16 where the request has fp8",
        ),
        ({"cluster": {"preset": "h100", "num_chips": 128}}, "ran chips = 64 where the request has"),
    ],
)
@pytest.mark.parametrize("end", [OUT_OF_MEMORY, MEGATRON[len(DUMP) :]])
def test_arguments_that_contradict_the_request_are_refused_with_and_without_steps(
    shared_client, said: dict[str, Any], rule: str, end: str
) -> None:
    answer = shared_client.post(ADDRESS, json={**CLUSTER, **said, "log": DUMP + end})
    assert rule in assert_problem(answer, "invalid", "/log")["errors"][0]["rule"]


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("|   0  NVIDIA A100-SXM4-80GB     On  | 00000000:07:00.0 Off |", "NVIDIA A100-SXM4-80GB"),
        ("#  Rank  0 on n0 device  0 [0000:19:00] NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("CUDA capacity: AMD Instinct MI300X with 191.98GiB memory", "AMD Instinct MI300X"),
    ],
)
def test_a_log_of_another_chip_is_refused(client, line: str, printed: str) -> None:
    answer = client.post(ADDRESS, json={**PREDICTION, "log": f"{line}\n{TITAN}"})
    problem = assert_problem(answer, "invalid", "/log")
    said = f"ran on {printed} where the request has cluster.chip = h100-sxm-80gb"
    assert said in problem["errors"][0]["rule"]
    prediction = client.post("/v1/predictions", json=PREDICTION).json()["id"]
    linked = client.post(ADDRESS, json={"prediction_id": prediction, "log": f"{line}\n{TITAN}"})
    assert "where what it is linked to has" in linked.text
    same = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n{TITAN}"
    assert client.post(ADDRESS, json={**PREDICTION, "log": same}).status_code == 201


def test_a_part_that_the_request_gives_need_not_be_in_the_dump(client) -> None:
    """The rest is read from the log, and compared."""
    cut = "\n".join(line for line in MEGATRON.split("\n") if "swiglu" not in line)
    problem = assert_problem(client.post(ADDRESS, json={**CLUSTER, "log": cut}), "invalid")
    assert problem["errors"][0]["field"] == "log.arguments.swiglu"
    found = client.post(ADDRESS, json={**CLUSTER, "model": "llama-3-8b", "log": cut}).json()
    assert found["reading"]["from_arguments"] == ["layout", "num_chips", "workload"]
    other = client.post(ADDRESS, json={**CLUSTER, "model": "llama-3-70b", "log": cut})
    assert "ran num_layers = 32 where the request has 80" in other.text


CASES = sorted((SHARED / "cases" / "logs").glob("*.expected.json"))


@pytest.mark.skipif(not CASES, reason="real logs (shared/cases/logs) are not beside the project")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.split(".")[0])
def test_a_real_log_is_read_or_refused_as_is_right(client, path: Path) -> None:
    case = json.loads(path.read_text())
    log = path.with_name(path.name.replace(".expected.json", ".log")).read_text()
    expected = case["expected"]
    answer = client.post(case["path"], json={**case["request_beside_log"], "log": log})
    found = answer.json()
    if "status" in expected:
        assert answer.status_code == expected["status"]
    if answer.status_code != 201:
        assert "why" in expected
        assert found["errors"][0]["field"] == "log"
        return
    if "value" in expected:
        assert found["reading"]["value"] == pytest.approx(expected["value"], rel=expected["within"])
        assert found["reading"]["steps_used"] == expected["steps_used"]
    assert found["report"]["outcome"] == expected.get("outcome", "ok")
    request = found["report"]["request"]
    layout = {**request["layout"]}
    layout["dp"] = layout["dp_shard"] * layout["dp_replicate"]
    assert {name: layout[name] for name in expected.get("layout", {})} == expected.get("layout", {})
    if "gated_mlp" in expected:
        assert request["model"]["gated_mlp"] == expected["gated_mlp"]
    stated = expected.get("from_the_dump", {})
    if stated:
        said = {**request["model"], **request["workload"], **layout}
        assert {name: said[name] for name in stated} == stated


def test_secrets_of_a_log_are_not_stored(client) -> None:
    log = "export WANDB_API_KEY=s3cr3t HF_TOKEN='s3cr3t'\n" + MEGATRON
    body = {**CLUSTER, "log": log, "model": "llama-3.1-8b"}
    answer = client.post(ADDRESS, json=body)
    assert answer.status_code == 201, answer.text
    stored = client.get(answer.headers["Location"])
    submission = json.loads(stored.json()["submission"])
    assert submission == {
        **body,
        "log": log.replace("'s3cr3t'", "'REDACTED'").replace("s3cr3t", "REDACTED"),
    }

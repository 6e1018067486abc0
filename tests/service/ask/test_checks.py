"""Checks of jobs that are about to be submitted."""

from __future__ import annotations

from typing import Any

import pytest

from service.schemas.check import CheckAnswer
from tests.long import one_in
from tests.service.asking import QUESTION, assert_problem, changed, without

SLOW = {"dp_shard": 8, "tp": 8, "zero_stage": 3}
ILLEGAL = {"dp_shard": 7, "tp": 3, "pp": 5}
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 128,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW"},
}
LAUNCHED: dict[str, Any] = {
    "launch": {"format": "deepspeed", "arguments": DEEPSPEED},
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192},
}
PATIENT = {"time_limit_s": 20}


def check(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/checks", json=body)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) <= 10_000
    CheckAnswer.model_validate(answer.json())
    return answer.json()


@pytest.mark.parametrize("layout", [SLOW, {"dp_shard": 64, "zero_stage": 3}, {"dp_shard": 64}])
def test_a_checked_layout_is_predicted_like_any_other(shared_client, layout: dict) -> None:
    checked = check(shared_client, {**QUESTION, "layout": layout})
    body = {**QUESTION, "layout": layout}
    (predicted,) = shared_client.post("/v1/predictions", json=body).json()["layouts"]
    shared = checked["prediction"].keys() & predicted.keys()
    assert {"step_time_s", "mfu", "tokens_per_s", "time", "memory_gib"} <= shared
    assert all(checked["prediction"][name] == predicted[name] for name in shared)
    assert checked["layout"] == predicted["layout"]
    fits = checked["fits"]
    assert fits["probability"] == predicted["fit_probability"]
    for name in ("needed_gib", "needed_low_gib", "needed_high_gib", "usable_gib"):
        assert fits[name] == predicted[name]


def test_a_slow_layout_goes_with_warnings(shared_client) -> None:
    answer = check(shared_client, {**QUESTION, "layout": SLOW, **PATIENT})
    assert answer["verdict"] == "go_with_warnings"
    assert answer["legal"]
    assert "low_mfu" in {warning["code"] for warning in answer["warnings"]}
    best = answer["best"]
    assert best["gain"] > 0.2
    assert best["gain_s"] == pytest.approx(
        answer["prediction"]["step_time_s"] - best["step_time_s"]
    )
    assert best["gain_probability"] > 0.9
    assert best["exact"]
    change = answer["first_change"]
    assert (change["knob"], change["from"]) == ("tp", 8)
    assert 0 < change["gain"] <= best["gain"] + 1e-9
    assert change["words"].startswith("tp from 8 to ")


def test_a_good_layout_goes(shared_client) -> None:
    slow = check(shared_client, {**QUESTION, "layout": SLOW, **PATIENT})
    best = check(shared_client, {**QUESTION, "layout": slow["best"]["layout"], **PATIENT})
    assert best["verdict"] in ("go", "go_with_warnings")
    assert best["best"]["gain"] == 0
    assert best["best"]["layout"] == best["layout"]


def test_a_layout_that_does_not_fit_is_told_what_would_free_enough(shared_client) -> None:
    question = changed(QUESTION, "model", "llama-3.1-70b")
    answer = check(shared_client, {**question, "layout": {"dp_shard": 64, "recompute": "none"}})
    assert answer["verdict"] == "will_not_fit"
    fits = answer["fits"]
    assert fits["probability"] < 0.5
    assert fits["over_gib"] == pytest.approx(fits["needed_gib"] - fits["usable_gib"])
    assert fits["largest_gib"] == max(answer["prediction"]["memory_gib"].values())
    assert fits["enough"]
    assert all(change["fit_probability"] >= 0.9 for change in fits["enough"])
    first = answer["first_change"]
    assert first["fit_probability"] >= 0.9
    assert first["step_time_s"] <= fits["enough"][0]["step_time_s"]


def test_an_illegal_layout_names_every_rule_and_still_has_a_best(shared_client) -> None:
    answer = check(shared_client, {**QUESTION, "layout": ILLEGAL})
    assert answer["verdict"] == "illegal"
    assert not answer["legal"]
    broken = {rule["name"]: rule for rule in answer["broken_rules"]}
    assert {"mesh_fills_cluster", "tensor_divides_heads", "batch_divides"} <= broken.keys()
    heads = broken["tensor_divides_heads"]
    assert heads["field"] == "layout.tp"
    assert heads["value"] == 3
    assert heads["cure"].startswith("tp = ")
    assert answer["prediction"] is answer["fits"] is None
    assert answer["best"]["gain"] is None
    assert answer["best"]["fit_probability"] >= 0.9


def test_a_launch_is_checked_as_typed(shared_client) -> None:
    answer = check(shared_client, LAUNCHED)
    assert answer["layout"]["dp_shard"] == 64
    assert answer["launch_read"]["framework"] == "DeepSpeed"
    assert answer["launch_read"]["unread"] == []
    named = shared_client.post(
        "/v1/checks", json={**QUESTION, "stack": "deepspeed", "layout": answer["layout"]}
    ).json()
    assert named["prediction"] == answer["prediction"]
    assert named["launch_read"] is None


def test_changes_of_a_launch_are_in_its_words(shared_client) -> None:
    model_parallel = without(DEEPSPEED, "train_batch_size")
    model_parallel["tensor_parallel"] = {"autotp_size": 4}
    body = changed(LAUNCHED, "launch.arguments", model_parallel)
    answer = check(shared_client, {**body, "workload": {"seq_len": 8192}})
    settings = {one["name"]: one for one in answer["first_change"]["settings"]}
    assert settings["tensor_parallel.autotp_size"]["from"] == 4


def test_no_verdict_rests_on_settings_that_are_not_understood(shared_client) -> None:
    name = "zero_optimization.zero_hpz_partition_size"
    sharding = {**DEEPSPEED.get("zero_optimization", {}), "zero_hpz_partition_size": 8}
    odd = changed(LAUNCHED, "launch.arguments", {**DEEPSPEED, "zero_optimization": sharding})
    answer = check(shared_client, odd)
    (warning,) = (one for one in answer["warnings"] if one["code"] == "unread_settings")
    assert name in warning["message"]
    (unread,) = answer["launch_read"]["unread"]
    assert unread.startswith(f"{name} = 8 (")
    assert answer["verdict"] == "cannot_tell"
    (reservation,) = answer["reservations"]
    assert reservation["setting"] == f"{name} = 8"
    assert all(reservation[part] in answer["summary"] for part in ("setting", "reason", "cure"))
    assert answer["prediction"]
    assert answer["layout"]
    assert answer["first_change"] is None
    assert answer["fits"]["enough"] == []


@pytest.mark.parametrize(
    ("stack", "field", "value"),
    [
        ("megatron", "optimizer", "adafactor"),
        ("megatron", "optimizer", "adamw_8bit"),
        ("megatron", "precision", "int8"),
        ("torchtitan", "precision", "fp16"),
    ],
)
def test_what_a_framework_does_not_have_stops_the_job(
    shared_client, stack: str, field: str, value: str
) -> None:
    asked = changed({**QUESTION, "stack": stack}, f"workload.{field}", value)
    answer = check(shared_client, {**asked, "layout": {"dp_shard": 64, "zero_stage": 3}})
    assert answer["verdict"] == "illegal"
    (rule,) = answer["broken_rules"]
    assert (rule["name"], rule["field"]) == ("framework_stops", f"workload.{field}")
    assert rule["value"] == value
    assert value in rule["rule"]
    assert rule["source"].endswith("whose options do not have it")
    assert rule["cure"].startswith(("ask with one of", "its optimizers are"))


def test_what_only_a_script_of_ones_own_can_say_is_no_plain_go(shared_client) -> None:
    asked = changed({**QUESTION, "stack": "megatron"}, "workload.lora", {"rank": 16})
    answer = check(shared_client, {**asked, "layout": {"dp_shard": 64}})
    assert answer["verdict"] == "go_with_warnings"
    warnings = {warning["code"]: warning["message"] for warning in answer["warnings"]}
    assert "cannot be said in megatron" in warnings["no_launch"]


def test_a_broken_rule_of_a_launch_is_in_its_words(shared_client) -> None:
    document = without(DEEPSPEED, "train_batch_size")
    document["tensor_parallel"] = {"autotp_size": 3}
    body = changed(LAUNCHED, "launch.arguments", document)
    body = changed(body, "workload.global_batch", 128)
    body = changed(body, "cluster.num_chips", 192)
    answer = check(shared_client, body)
    broken = {rule["name"]: rule for rule in answer["broken_rules"]}
    assert broken["tensor_divides_heads"]["setting"] == "tensor_parallel.autotp_size"
    field = "launch.arguments.tensor_parallel.autotp_size"
    assert broken["tensor_divides_heads"]["field"] == field
    refused = shared_client.post("/v1/predictions", json=body)
    assert_problem(refused, "invalid", "/launch/arguments/tensor_parallel/autotp_size")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({**QUESTION}, "/layout"),
        ({"launch": LAUNCHED["launch"]}, "/cluster"),
        ({**LAUNCHED, "layout": SLOW}, "/layout"),
        (changed(LAUNCHED, "launch.format", "shell"), "/launch/format"),
        (changed(LAUNCHED, "launch.arguments", ""), "/launch/arguments"),
        (changed(LAUNCHED, "launch.arguments", "["), "/launch/arguments"),
        (changed(LAUNCHED, "launch.arguments", "[" * 60_000), "/launch/arguments"),
        (changed(LAUNCHED, "launch.arguments", "x" * 70_000), "/launch/arguments"),
        (changed(LAUNCHED, "launch.arguments", ["x" * 1000] * 70), "/launch/arguments"),
        (changed(LAUNCHED, "workload.seq_len", 0), "/workload/seq_len"),
        ({**QUESTION, "layout": SLOW, "time_limit_s": 0}, "/time_limit_s"),
        ({**QUESTION, "layout": SLOW, "constraints": {"tp": 0}}, "/constraints/tp"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(shared_client, body: dict, pointer: str) -> None:
    answer = shared_client.post("/v1/checks", json=body)
    assert answer.status_code == 422
    assert_problem(answer, "invalid", pointer)


def test_a_report_that_ran_out_of_memory_is_a_warning(client) -> None:
    report = {**QUESTION, "layout": SLOW, "outcome": "out_of_memory"}
    assert client.post("/v1/reports", json=report).status_code == 201
    answer = check(client, {**QUESTION, "layout": SLOW})
    assert "reported_out_of_memory" in {warning["code"] for warning in answer["warnings"]}


def test_a_check_stores_nothing(client) -> None:
    check(client, {**QUESTION, "layout": SLOW})
    assert client.get("/v1/predictions").json()["items"] == []
    assert client.get("/v1/recommendations").json()["items"] == []


SBATCH = """#!/bin/bash
#SBATCH --nodes=16 --ntasks-per-node=8 --gpus-per-node=8
srun python pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --swiglu \\
  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \\
  --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel \\
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 512 --bf16
"""


def typed(old: str = "", new: str = "") -> dict[str, Any]:
    """A check of the job script, with one text in it replaced."""
    arguments = SBATCH.replace(old, new)
    return {
        "launch": {"format": "megatron", "arguments": arguments},
        "cluster": {"preset": "h100"},
        **PATIENT,
    }


def test_a_job_script_says_all_but_the_chips(shared_client) -> None:
    answer = check(shared_client, typed())
    assert answer["verdict"] in ("go", "go_with_warnings")
    assert answer["request"]["cluster"]["num_chips"] == 128
    layout = answer["layout"]
    assert (layout["tp"], layout["pp"], layout["dp_shard"]) == (8, 4, 4)
    assert answer["catalogue"]["architecture"]["num_layers"] == 80
    assert answer["first_change"]["settings"][0]["name"].startswith("--")


@pytest.mark.parametrize(
    ("old", "new", "name", "setting"),
    [
        (
            "--micro-batch-size 1",
            "--micro-batch-size 3",
            "batch_divides",
            "--micro-batch-size",
        ),
        (
            "--global-batch-size 512",
            "--global-batch-size 513",
            "batch_divides",
            "--global-batch-size",
        ),
        (
            "parallel-size 8",
            "parallel-size 5",
            "tensor_divides_heads",
            "--tensor-model-parallel-size",
        ),
        (
            "parallel-size 4",
            "parallel-size 3",
            "layers_divide",
            "--pipeline-model-parallel-size",
        ),
        (
            "--bf16",
            "--bf16 --recompute-granularity full",
            "framework_stops",
            "--recompute-granularity",
        ),
    ],
)
def test_what_megatron_refuses_is_illegal_and_named_by_its_flag(
    shared_client, old: str, new: str, name: str, setting: str
) -> None:
    answer = check(shared_client, typed(old, new))
    assert answer["verdict"] == "illegal"
    (broken,) = (rule for rule in answer["broken_rules"] if rule["name"] == name)
    assert broken["setting"] == setting
    assert setting in broken["field"]
    assert broken["cure"]
    assert broken["source"]
    assert answer["best"]["fit_probability"] >= 0.9
    assert name in answer["summary"]
    refused = shared_client.post("/v1/predictions", json=without(typed(old, new), "time_limit_s"))
    assert refused.status_code == 422


@pytest.mark.parametrize(
    ("format_", "arguments", "setting"),
    [
        (
            "megatron",
            SBATCH.replace("--bf16", "--bf16 --num-layers-per-virtual-pipeline-stage 3"),
            "--num-layers-per-virtual-pipeline-stage",
        ),
        (
            "megatron",
            SBATCH.replace("--bf16", "--bf16 --pipeline-model-parallel-layout Et*20|t*20|t*40L"),
            "--pipeline-model-parallel-layout",
        ),
        ("deepspeed", {**DEEPSPEED, "train_batch_size": 127}, "train_batch_size"),
        ("deepspeed", {**DEEPSPEED, "train_batch_size": 64}, "train_batch_size"),
        (
            "deepspeed",
            {**without(DEEPSPEED, "train_batch_size"), "data_parallel_size": 48},
            "data_parallel_size",
        ),
        (
            "torchtitan",
            "--module llama3 --config llama3_8b --parallelism.data_parallel_shard_degree 48",
            "--parallelism.data_parallel_shard_degree",
        ),
        (
            "maxtext",
            "model_name=llama3.1-8b max_target_length=8192 ici_fsdp_parallelism=16"
            " ici_pipeline_parallelism=4 num_layers_per_pipeline_stage=3"
            " per_device_batch_size=4",
            "num_layers_per_pipeline_stage",
        ),
    ],
)
def test_what_parses_and_is_refused_gets_a_verdict(
    shared_client, format_: str, arguments: Any, setting: str
) -> None:
    body = {"launch": {"format": format_, "arguments": arguments}, "cluster": LAUNCHED["cluster"]}
    if format_ == "megatron":
        body["cluster"] = {"preset": "h100"}
    if format_ == "deepspeed":
        body |= {"model": "llama-3.1-8b", "workload": {"seq_len": 8192}}
    answer = check(shared_client, body | PATIENT)
    assert answer["verdict"] == "illegal"
    broken = {rule["setting"]: rule for rule in answer["broken_rules"]}
    assert broken[setting]["name"] == "framework_stops"
    assert broken[setting]["cure"]
    assert broken[setting]["source"]
    assert answer["prediction"] is answer["fits"] is None
    assert answer["best"]["fit_probability"] >= 0.9
    assert shared_client.post("/v1/predictions", json=body).status_code == 422


def test_what_the_parser_refuses_is_no_check(shared_client) -> None:
    odd = typed("--bf16", "--bf16 --moe-token-dispatcher-type puzzle")
    answer = shared_client.post("/v1/checks", json=odd)
    assert_problem(answer, "invalid", "/launch/arguments")
    (error,) = answer.json()["errors"]
    assert error["value"] == "--moe-token-dispatcher-type puzzle"
    assert "allgather, alltoall, flex" in error["rule"]


def test_a_stop_of_older_chips_is_none_on_newer_ones(shared_client) -> None:
    flags = (
        "CUDA_DEVICE_MAX_CONNECTIONS=8 torchrun --nproc-per-node 8 pretrain_gpt.py --bf16"
        " --micro-batch-size 1 --global-batch-size 8 --seq-length 4096 --sequence-parallel"
        " --tensor-model-parallel-size 2 --use-distributed-optimizer"
    )
    body = {"launch": {"format": "megatron", "arguments": flags}, "model": "llama-3-8b"}
    for chip, verdict in (("h100", False), ("b200", True)):
        asked = {**body, "cluster": {"preset": chip, "num_chips": 8}}
        assert check(shared_client, asked)["legal"] is verdict
        predicted = shared_client.post("/v1/predictions", json=asked)
        assert (predicted.status_code < 400) is verdict


def test_the_best_of_a_launch_is_a_layout_that_it_can_say(shared_client) -> None:
    """torchtitan's graphs go without a pipeline, which the fastest layout here has."""
    body = {
        "launch": {
            "format": "torchtitan",
            "arguments": "--module llama3 --config llama3_8b"
            " --parallelism.data_parallel_shard_degree 8 --parallelism.tensor_parallel_degree 8",
        },
        "cluster": {"preset": "h100", "num_chips": 64},
        **PATIENT,
    }
    answer = check(shared_client, body)
    assert answer["best"]["layout"]["pp"] == 1
    assert not answer["best"]["exact"]


def test_batches_that_divide_are_offered_first_and_in_the_words_of_the_request(
    shared_client,
) -> None:
    answer = check(shared_client, typed("--global-batch-size 512", "--global-batch-size 513"))
    (broken,) = answer["broken_rules"]
    assert broken["value"] == 513
    assert broken["cure"].startswith("--global-batch-size 512 or 516, or --")
    asked = {**QUESTION, "workload": {"seq_len": 8192, "global_batch_tokens": 8192 * 1000}}
    asked["layout"] = {"dp_shard": 32, "tp": 2, "zero_stage": 3}
    (plain,) = check(shared_client, asked)["broken_rules"]
    assert (plain["field"], plain["value"]) == ("workload.global_batch_tokens", 8192 * 1000)
    assert plain["cure"].startswith("global_batch = 992 or 1024, or ")
    refused = shared_client.post("/v1/predictions", json=asked).json()
    (error,) = refused["errors"]
    assert error["pointer"] == "/workload/global_batch_tokens"
    assert error["rule"].endswith(
        "the nearest such batches are 992 and 1024 sequences: 8126464 and 8388608 tokens"
    )


def test_the_change_that_makes_a_launch_legal_is_in_its_words(shared_client) -> None:
    answer = check(shared_client, typed("--micro-batch-size 1", "--micro-batch-size 3"))
    (setting,) = answer["first_change"]["settings"]
    assert (setting["name"], setting["from"]) == ("--micro-batch-size", 3)


def hostile(unknown: str, count: int = 90) -> str:
    return " ".join(f"{unknown}{number}{'x' * 100} {'y' * 150}" for number in range(count))


PAIRS = hostile("unknown").replace(" y", "=y")


@pytest.mark.parametrize(
    ("format_", "arguments", "version"),
    one_in(
        2,
        [
            ("megatron", SBATCH.replace("--bf16", f"--bf16 {hostile('--unknown-')}"), None),
            (
                "megatron-bridge",
                f"train.global_batch_size=128 train.micro_batch_size=1 model.{PAIRS}",
                None,
            ),
            ("torchtitan", f"--module llama3 --config llama3_8b {hostile('--unknown_')}", None),
            ("torchtitan", f"--module llama3 --config llama3_8b {hostile('--unknown_')}", "0.2.0"),
            ("maxtext", f"model_name=llama3.1-8b max_target_length=8192 {PAIRS}", None),
            (
                "deepspeed",
                {**DEEPSPEED, "bf16": {f"u{n}{'é' * 60}": "y" * 150 for n in range(90)}},
                None,
            ),
        ],
    ),
)
def test_an_answer_stays_short_whatever_is_typed(
    shared_client, format_: str, arguments: Any, version: str | None
) -> None:
    launch = {"format": format_, "arguments": arguments, "version": version}
    body = {"launch": launch, "cluster": {"preset": "h100"}}
    if format_ != "megatron":
        body["cluster"]["num_chips"] = 64
    if format_ in ("deepspeed", "megatron-bridge"):
        body |= {"model": "llama-3.1-8b", "workload": {"seq_len": 8192}}
    answer = check(shared_client, body)
    if answer["legal"]:
        assert answer["launch_read"]["unread_count"] >= 90
        (warning,) = (one for one in answer["warnings"] if one["code"] == "unread_settings")
        assert warning["numbers"]["count"] == answer["launch_read"]["unread_count"]
    else:
        assert answer["broken_rule_count"] >= 90
        assert 0 < len(answer["broken_rules"]) <= 8


def test_the_settings_of_a_change_hold_all_that_follows_from_it(shared_client) -> None:
    without_tp = typed("--tensor-model-parallel-size 8", "--tensor-model-parallel-size 1")
    without_tp["launch"]["arguments"] = without_tp["launch"]["arguments"].replace(
        "--sequence-parallel", ""
    )
    change = check(shared_client, without_tp)["first_change"]
    settings = {one["name"]: (one["from"], one["to"]) for one in change["settings"]}
    before, after = settings["--tensor-model-parallel-size"]
    assert before == 1 < after
    assert settings["--sequence-parallel"] == (None, True)


@pytest.mark.parametrize(
    ("old", "new", "cure"),
    [
        (
            "--global-batch-size 512",
            "--global-batch-size 510",
            "--global-batch-size 508 or 512, or --tensor-model-parallel-size 16 or 32,"
            " with data parallelism over the other devices",
        ),
        (
            "--global-batch-size 512 --bf16",
            "--global-batch-size 12 --bf16 --num-virtual-stages-per-pipeline-rank 2",
            "without --num-virtual-stages-per-pipeline-rank, or --global-batch-size 16",
        ),
        (
            "--tensor-model-parallel-size 8",
            "--tensor-model-parallel-size 5",
            "--tensor-model-parallel-size 1, 2, 4 or 8, with data parallelism over the other"
            " devices",
        ),
    ],
)
def test_cures_of_a_launch_can_be_typed(shared_client, old: str, new: str, cure: str) -> None:
    assert old in SBATCH
    (broken, *_) = check(shared_client, typed(old, new))["broken_rules"]
    assert broken["cure"] == cure


def test_a_cure_says_the_batch_that_its_values_need(shared_client) -> None:
    """Of 12 chips a degree of tensor parallelism that divides the heads leaves three or more to
    data parallelism, over which 512 sequences do not divide."""
    body = typed("--pipeline-model-parallel-size 4 --sequence-parallel", "")
    cured = "--tensor-model-parallel-size 1, 2 or 4, with data parallelism over the other devices,"
    body["cluster"]["num_chips"] = 12
    (broken,) = check(shared_client, body)["broken_rules"]
    assert broken["name"] == "mesh_fills_cluster"
    assert broken["cure"] == f"{cured} and --global-batch-size 504 or 516"


def test_a_job_that_may_not_fit_is_told_of_its_micro_batch(shared_client) -> None:
    body = typed(
        "--micro-batch-size 1 --global-batch-size 512 --bf16",
        "--micro-batch-size 2 --global-batch-size 520 --bf16"
        " --num-layers-per-virtual-pipeline-stage 5"
        " --microbatch-group-size-per-virtual-pipeline-stage 5",
    )
    answer = check(shared_client, body)
    change = answer["first_change"]
    assert answer["fits"]["probability"] < 0.9 <= change["fit_probability"]
    (setting,) = change["settings"]
    assert (setting["name"], setting["from"], setting["to"]) == ("--micro-batch-size", 2, 1)


FLAGS = SBATCH.replace("--bf16", "--bf16 {}")


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("--recompute-granularty full", ["--recompute-granularty", "--recompute-granularity"]),
        ("--moe-router-topq 2", ["--moe-router-topq", "--moe-router-topk"]),
        ("--num-layer 32", ["--num-layer", "--num-layers"]),
    ],
)
def test_a_misspelt_name_is_illegal_and_its_spelling_the_first_change(
    shared_client, written: str, names: list[str]
) -> None:
    flags = FLAGS.replace("--num-layers 32", "") if "layer" in written else FLAGS
    launch = {"format": "megatron", "arguments": flags.format(written)}
    answer = check(shared_client, {"launch": launch, "cluster": {"preset": "h100"}})
    assert answer["verdict"] == "illegal"
    change = answer["first_change"]
    assert change is None or [one["name"] for one in change["settings"]] == names
    assert names[1] in answer["broken_rules"][0]["cure"]


def test_a_name_that_is_like_none_may_be_of_a_fork(shared_client) -> None:
    launch = {"format": "megatron", "arguments": FLAGS.format("--zorblax 16")}
    answer = check(shared_client, {"launch": launch, "cluster": {"preset": "h100"}})
    assert answer["verdict"] == "cannot_tell"
    assert [one["setting"] for one in answer["reservations"]] == ["--zorblax 16"]


def test_the_chips_of_the_request_go_before_those_of_the_script(shared_client) -> None:
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:a100:8\n{SBATCH}"
    launch = {"format": "megatron", "arguments": script}
    answer = check(shared_client, {"launch": launch, "cluster": {"preset": "h100"}})
    warnings = [
        one["message"] for one in answer["warnings"] if one["code"] == "request_overrules_launch"
    ]
    assert any("a100" in one and "h100" in one for one in warnings)
    assert answer["catalogue"]["chip"]["name"].startswith("h100")


def constrained(expression: str, **body: Any) -> dict[str, Any]:
    script = SBATCH.replace("#SBATCH", f"#SBATCH --constraint={expression}", 1)
    return {"launch": {"format": "megatron", "arguments": script}, **body, **PATIENT}


@pytest.mark.parametrize("expression", ["h100", "'h100&ib'", "[h100*16]", "GPU_SKU:H100_SXM5"])
def test_a_constraint_names_the_chips_as_gres_does(shared_client, expression: str) -> None:
    answer = check(shared_client, constrained(expression))
    assert answer["catalogue"]["chip"]["name"] == "h100-sxm-80gb"
    assert answer["request"]["cluster"]["num_chips"] == 128
    assert any("cluster.preset" in each for each in answer["launch_read"]["assumed"])


@pytest.mark.parametrize("expression", ["'h100|a100'", "[h100*4]", "ib", "v4", "'a100&h100'"])
def test_a_constraint_that_leaves_the_chips_open_names_none(shared_client, expression: str) -> None:
    refused = shared_client.post("/v1/checks", json=constrained(expression))
    problem = assert_problem(refused, "invalid", "/cluster")
    assert "the launch does not name its chips" in problem["errors"][0]["rule"]


def test_the_chips_of_the_request_go_before_a_constraint(shared_client) -> None:
    answer = check(shared_client, constrained("a100", cluster={"preset": "h100"}))
    codes = [one["code"] for one in answer["warnings"] if "a100" in one["message"]]
    assert codes == ["request_overrules_launch"]
    assert answer["catalogue"]["chip"]["name"].startswith("h100")


def test_a_check_is_of_the_nodes_that_are_held(shared_client) -> None:
    nodes = [{"name": f"n{at}", "chips": 4} for at in range(16)]
    body = {**QUESTION, "layout": SLOW, **PATIENT, "allocation": {"nodes": nodes}}
    answer = check(shared_client, body)
    cluster = answer["request"]["cluster"]
    assert (cluster["num_chips"], cluster["chips_per_domain"]) == (64, 4)
    twice = {**body, "allocation": {"nodes": [nodes[0], nodes[0]]}}
    refused = shared_client.post("/v1/checks", json=twice)
    assert refused.status_code == 422


@pytest.mark.parametrize(
    "arguments",
    [
        'srun -N 2 python -c "import torch; print(torch.cuda.is_available())"',
        "#!/bin/bash\n#SBATCH --gres=gpu:1\njupyter lab --no-browser --ip=0.0.0.0",
        "#SBATCH --gpus-per-node=8\nvllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 8",
        "srun nvidia-smi",
        "mpirun -np 8 ./lmp -in in.lj",
        "#!/bin/bash\nexport NCCL_DEBUG=WARN\nsource env.sh",
        "echo hello",
        "bash src/MaxText/configs/v5e/16b.sh RUN_NAME=x",
    ],
)
def test_a_job_that_starts_nothing_known_to_train_is_no_training_job(
    shared_client, arguments: str
) -> None:
    body = {"launch": {"arguments": arguments}, "cluster": {"preset": "h100"}}
    refused = shared_client.post("/v1/checks", json=body)
    assert_problem(refused, "not-a-training-job", "/launch/arguments")


@pytest.mark.parametrize("arguments", ["--tensor-parallel 4", "bf16: true\nfoo: 1", "hello"])
def test_a_text_that_tells_no_format_asks_for_it(shared_client, arguments: str) -> None:
    refused = shared_client.post("/v1/checks", json={"launch": {"arguments": arguments}})
    assert_problem(refused, "invalid", "/launch/format")


def test_a_command_that_cannot_be_read_says_why(shared_client) -> None:
    train = "torchrun --nproc_per_node 8 -m torchtitan.train --parallelism.tensor_parallel_degree"
    arguments = f"for TP in 1 2; do\n  {train} $TP\ndone\n"
    refused = shared_client.post("/v1/checks", json={"launch": {"arguments": arguments}})
    problem = assert_problem(refused, "invalid", "/launch/arguments")
    assert "starts 2 commands" in problem["detail"]


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("tune run --nproc_per_node 8 lora_finetune_single_device --config c", "torchtune"),
        ("composer train/train.py train/yamls/pretrain/mpt-125m.yaml", "Composer"),
        (
            "python3 benchmarks/benchmark_runner.py xpk --model_name=a",
            "the benchmark runner of MaxText",
        ),
        ("litgpt finetune_lora Llama-3.1-8B --train.micro_batch_size 2", "LitGPT"),
        ("python3 -m verl.trainer.main_ppo data.train_batch_size=1024", "verl"),
    ],
)
def test_a_framework_that_is_not_read_is_named(shared_client, text: str, framework: str) -> None:
    refused = shared_client.post("/v1/checks", json={"launch": {"arguments": text}})
    problem = assert_problem(refused, "invalid", "/launch/arguments")
    assert f"{framework}, whose settings are not read" in problem["errors"][0]["rule"]


def test_a_script_with_settings_whose_text_was_not_sent_is_asked_for(shared_client) -> None:
    text = "bash run_pretrain.sh --micro_batch_size 2 --global_batch_size 128"
    refused = shared_client.post("/v1/checks", json={"launch": {"arguments": text}})
    problem = assert_problem(refused, "not-a-training-job", "/launch/arguments")
    assert "launch.files" in problem["errors"][0]["rule"]


def test_a_script_that_was_sent_tells_its_format_by_what_it_starts(shared_client) -> None:
    files = {"run.sh": f"{SBATCH.replace('pretrain_gpt', 'pretrain_own')}"}
    launch = {"arguments": "sbatch run.sh 8b", "files": files}
    answer = check(shared_client, {"launch": launch, "cluster": {"preset": "h100"}})
    assert answer["launch_read"]["format"] == "megatron"


def test_a_program_in_python_is_told_apart_from_its_arguments(shared_client) -> None:
    text = "import torch\nargs = TrainingArguments(per_device_train_batch_size=4)\n"
    launch = {"format": "transformers", "arguments": text}
    refused = shared_client.post("/v1/checks", json={"launch": launch, "model": "llama-3-8b"})
    problem = assert_problem(refused, "invalid", "/launch/arguments")
    assert "is a program in Python" in problem["errors"][0]["rule"]


def test_values_that_a_script_takes_by_default_are_among_its_assumptions(shared_client) -> None:
    script = "PP=${PP:-1}\nOUT=${OUT:-/tmp/out}\nN=${UNUSED:-3}\n"
    flags = FLAGS.format("--save $OUT").replace("parallel-size 4", "parallel-size $PP")
    arguments = flags.replace("srun", f"{script}srun")
    launch = {"format": "megatron", "arguments": arguments}
    answer = check(shared_client, {"launch": launch, "cluster": {"preset": "h100"}})
    (taken,) = [one for one in answer["launch_read"]["assumed"] if "the script takes" in one]
    assert taken.startswith("PP is 1: ")
    launch["environment"] = {"PP": "1"}
    answer = check(shared_client, {"launch": launch, "cluster": {"preset": "h100"}})
    assert not any("the script takes" in one for one in answer["launch_read"]["assumed"])


LLAMA_FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
finetuning_type: lora
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
adapter: lora
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 4
bf16: true
"""


@pytest.mark.parametrize(
    ("text", "name", "before", "after"),
    [
        (LLAMA_FACTORY, "disable_gradient_checkpointing", None, True),
        (
            f"{LLAMA_FACTORY}enable_liger_kernel: true\n",
            "disable_gradient_checkpointing",
            None,
            True,
        ),
        (AXOLOTL, "liger_fused_linear_cross_entropy", None, True),
    ],
)
def test_a_change_is_said_in_the_words_of_the_tool(
    shared_client, text: str, name: str, before: Any, after: Any
) -> None:
    launch = {"arguments": text}
    cluster = {"preset": "a100-80gb", "num_chips": 8}
    answer = check(shared_client, {"launch": launch, "cluster": cluster})
    changes = [answer["first_change"], *answer["fits"]["enough"]]
    (setting,) = changes[0]["settings"]
    assert (setting["name"], setting["from"], setting["to"]) == (name, before, after)
    own = {switch["name"] for switch in answer["switches"]}
    assert "use_liger_kernel" not in own

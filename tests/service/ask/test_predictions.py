from __future__ import annotations

from typing import Any

import pytest

from models.spec import catalogue
from service.resolve.stored_runs import StoredRuns
from service.schemas.prediction import MAX_LAYOUTS, PredictionAnswer
from service.store.tables import ReportRow
from tests.service.asking import (
    LAUNCHED,
    LAYOUT,
    PREDICTION,
    QUESTION,
    SHAPE,
    assert_problem,
    changed,
    without,
)


def test_a_prediction_is_stored_as_it_was_answered(client) -> None:
    made = client.post("/v1/predictions", json=PREDICTION)
    assert made.status_code == 201
    kept = client.get(made.headers["location"])
    assert kept.json() == made.json()
    assert (
        PredictionAnswer.model_validate(made.json()).id
        == made.headers["location"].rsplit("/", 1)[1]
    )


def test_a_sequence_is_no_longer_than_the_positions_that_a_model_learns(shared_client) -> None:
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    asked = changed(changed(PREDICTION, "model", gpt2), "workload.seq_len", 1024)
    assert shared_client.post("/v1/predictions", json=asked).is_success
    longer = shared_client.post("/v1/predictions", json=changed(asked, "workload.seq_len", 1025))
    found = assert_problem(longer, "invalid", "/workload/seq_len")
    assert "1024 positions" in found["errors"][0]["rule"]


@pytest.mark.parametrize(
    ("made", "body"), [("predictions", PREDICTION), ("recommendations", QUESTION)]
)
def test_what_was_asked_is_listed_in_pages(client, made: str, body: dict[str, object]) -> None:
    asked = [changed(body, "workload.global_batch", batch) for batch in (64, 128, 256)]
    kept = [client.post(f"/v1/{made}", json=each).headers["location"] for each in asked]
    first = client.get(f"/v1/{made}?limit=2")
    rest = client.get(first.headers["link"].split(">")[0].lstrip("<")).json()
    assert [item["location"] for item in [*first.json()["items"], *rest["items"]]] == kept[::-1]
    assert rest["next"] is None
    assert client.get(kept[0]).json()["request"].items() >= rest["items"][0]["request"].items()
    assert rest["items"][0]["request"].keys() == {"model", "cluster", "workload", "stack"}


@pytest.mark.parametrize(
    ("preset", "chip", "scale_out"),
    [
        ("p5.48xlarge", "h100-sxm-80gb", 50),
        ("DGX-H100", "h100-sxm-80gb", 50),
        ("dgx-a100", "a100-sxm-80gb", 25),
        ("a3-megagpu-8g", "h100-sxm-80gb", 25),
        ("a3-highgpu-8g", "h100-sxm-80gb", 12.5),
        ("p4d.24xlarge", "a100-sxm-40gb", 6.25),
        ("p4de.24xlarge", "a100-sxm-80gb", 6.25),
        ("p4d", "a100-sxm-40gb", 6.25),
        ("Standard_ND96isr_H100_v5", "h100-sxm-80gb", 50),
        ("a3-ultragpu-8g", "h200-sxm-141gb", 50),
        ("gpu:h100", "h100-sxm-80gb", 50),
    ],
)
def test_machines_go_by_the_names_clouds_sell_them_under(
    shared_client, preset: str, chip: str, scale_out: float
) -> None:
    used = shared_client.post(
        "/v1/predictions", json=changed(PREDICTION, "cluster.preset", preset)
    ).json()["catalogue"]
    assert used["chip"]["name"] == chip
    assert used["fabric"]["links"][-1]["gb_s"] == scale_out


@pytest.mark.parametrize(
    ("preset", "chip", "num_chips"),
    [
        ("v5p-256", "tpu-v5p", 128),
        ("TPU-v4-128", "tpu-v4", 64),
        ("v6e-64", "tpu-v6e", 64),
        ("v5litepod-16", "tpu-v5e", 16),
        ("tpu7x-128", "tpu-v7x", 64),
    ],
)
def test_a_tpu_slice_is_so_many_chips(
    shared_client, preset: str, chip: str, num_chips: int
) -> None:
    body = {**PREDICTION, "stack": "maxtext", "cluster": {"preset": preset}}
    devices = num_chips * catalogue.chip(chip).devices_per_chip
    body["layout"] = {"dp_shard": devices, "zero_stage": 3, "recompute": "full"}
    found = shared_client.post("/v1/predictions", json=body).json()
    assert found["request"]["cluster"] == {"preset": chip, "num_chips": num_chips}


@pytest.mark.parametrize(
    ("preset", "chip"), [("ct5p-hightpu-4t", "tpu-v5p"), ("trn2.48xlarge", "trainium2")]
)
def test_a_machine_of_tori_is_its_chip(shared_client, preset: str, chip: str) -> None:
    body = {**PREDICTION, "stack": "generic", "cluster": {"preset": preset, "num_chips": 32}}
    devices = 32 * catalogue.chip(chip).devices_per_chip
    found = shared_client.post(
        "/v1/predictions", json={**body, "layout": {"dp_shard": devices, "zero_stage": 3}}
    ).json()
    assert found["catalogue"]["chip"]["name"] == chip


@pytest.mark.parametrize(
    ("cluster", "near"), [({"preset": "groq"}, ""), ({"chip": "h1000"}, "did you mean h100")]
)
def test_of_an_unknown_chip_it_is_said_how_to_describe_it(
    shared_client, cluster: dict[str, str], near: str
) -> None:
    answer = shared_client.post(
        "/v1/predictions", json={**PREDICTION, "cluster": {**cluster, "num_chips": 64}}
    )
    rule = assert_problem(answer, "unknown-name")["errors"][0]["rule"]
    assert "data sheet, or registered by POST /v1/catalog/chips" in rule
    assert near in rule
    assert "known: " not in rule


@pytest.mark.parametrize(
    ("preset", "chip", "shape"),
    [
        ("tpu7x-4x4x8", "tpu-v7x", [4, 4, 8]),
        ("tpu8t-4x4x8", "tpu-v8t", [4, 4, 8]),
        ("v5p-4x4x8", "tpu-v5p", [4, 4, 8]),
        ("TPU-v6e-8x16", "tpu-v6e", [8, 16]),
        ("v5litepod-8x16", "tpu-v5e", [8, 16]),
    ],
)
def test_a_tpu_slice_may_be_named_by_its_shape(
    shared_client, preset: str, chip: str, shape: list[int]
) -> None:
    body = {**PREDICTION, "stack": "maxtext", "cluster": {"preset": preset}}
    devices = 256 if chip == "tpu-v7x" else 128
    body["layout"] = {"dp_shard": devices, "zero_stage": 3, "recompute": "full"}
    found = shared_client.post(
        "/v1/predictions", json=changed(body, "workload.global_batch", 256)
    ).json()
    assert found["request"]["cluster"] == {"preset": chip, "num_chips": 128, "torus_shape": shape}


@pytest.mark.parametrize(
    ("cluster", "field"),
    [
        ({"preset": "v5p-4x4x7"}, "preset"),
        ({"preset": "v6e-8x12"}, "preset"),
        ({"preset": "v5p-4x4x8", "num_chips": 64}, "num_chips"),
        ({"preset": "v5p-4x4x8", "torus_shape": [8, 4, 4]}, "torus_shape"),
        ({"preset": "v5p-256", "torus_shape": [4, 4, 4]}, "torus_shape"),
        ({"preset": "v5p-8x16"}, "torus_shape"),
        ({"preset": "v9z-8x16"}, "preset"),
    ],
)
def test_a_slice_named_by_its_shape_has_that_shape(
    shared_client, cluster: dict[str, Any], field: str
) -> None:
    found = shared_client.post("/v1/predictions", json=changed(PREDICTION, "cluster", cluster))
    assert_problem(
        found, "unknown-name" if "v9z" in cluster["preset"] else "invalid", f"/cluster/{field}"
    )


def test_a_tpu_slice_fixes_the_number_of_chips(shared_client) -> None:
    odd = changed(PREDICTION, "cluster", {"preset": "v5p-255"})
    assert_problem(shared_client.post("/v1/predictions", json=odd), "invalid", "/cluster/preset")
    other = changed(PREDICTION, "cluster", {"preset": "v5p-256", "num_chips": 256})
    assert_problem(
        shared_client.post("/v1/predictions", json=other), "invalid", "/cluster/num_chips"
    )
    none = shared_client.post(
        "/v1/predictions", json=changed(PREDICTION, "cluster", {"preset": "v5p-100"})
    )
    assert_problem(none, "invalid", "/cluster/preset")
    assert "v5p-64 and v5p-128" in none.json()["detail"]


@pytest.mark.parametrize("name", ["BF16", "FP8", "Fp16"])
def test_a_precision_is_read_in_any_case(shared_client, name: str) -> None:
    answer = shared_client.post(
        "/v1/predictions", json=changed(PREDICTION, "workload.precision", name)
    )
    assert answer.json()["request"]["workload"]["precision"] == name.lower()


def test_the_terms_add_up(shared_client) -> None:
    found = shared_client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]
    assert sum(found["time"].values()) == pytest.approx(found["step_time_s"])
    assert sum(found["memory_gib"].values()) == pytest.approx(found["needed_gib"])
    assert found["step_time_low_s"] < found["step_time_s"] < found["step_time_high_s"]
    assert found["tokens_per_s"] == pytest.approx(8192 * 128 / found["step_time_s"])
    assert found["fits"] == (found["needed_gib"] <= found["usable_gib"])
    assert found["host_gib"] == 0.0
    assert found["host_usable_gib"] == pytest.approx(256.0, abs=0.1)


def test_the_slowest_likely_step_makes_the_least_mfu_and_tokens(shared_client) -> None:
    found = shared_client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]
    for speed, time in (("low", "high"), ("high", "low")):
        longer = found[f"step_time_{time}_s"] / found["step_time_s"]
        assert found[f"tokens_per_s_{speed}"] * longer == pytest.approx(found["tokens_per_s"])
        for convention, mfu in found["mfu"].items():
            assert found[f"mfu_{speed}"][convention] * longer == pytest.approx(mfu)


@pytest.mark.parametrize(
    ("chip", "dtype"), [("h100", "tf32"), ("v100", "fp32"), ("mi350x", "fp32")]
)
def test_products_of_fp32_are_those_that_the_chip_makes(
    shared_client, chip: str, dtype: str
) -> None:
    asked = changed(changed(PREDICTION, "cluster.preset", chip), "workload.precision", "fp32")
    found = shared_client.post("/v1/predictions", json={**asked, "stack": "megatron"}).json()
    assert found["conventions"]["mfu_peak"]["dtype"] == dtype


def test_the_answer_says_what_it_rests_on(client) -> None:
    found = client.post("/v1/predictions", json=PREDICTION).json()
    assert found["profile"] == {"id": "default", "version": 1}
    assert found["catalogue"]["architecture"]["parameters"]["total"] == 8_030_261_248
    assert found["catalogue"]["chip"] == {
        "name": "h100-sxm-80gb",
        "source": "shipped",
        "version": None,
    }
    assert found["conventions"]["mfu_peak"] == {"dtype": "bf16", "tflops_per_chip": 989.4}
    assert "workload.precision is bf16" in found["assumptions"]
    assert found["request"]["workload"]["optimizer"] == "adamw"


def test_the_same_request_gets_the_same_answer(shared_client) -> None:
    first, second = (
        shared_client.post("/v1/predictions", json=PREDICTION).json() for _ in range(2)
    )
    own = ("id", "created_at", "launch")  # which names the id
    assert without(first, *own) == without(second, *own)
    assert first["launch"]["arguments"] == second["launch"]["arguments"]


def test_the_request_of_an_answer_asks_for_the_same_again(shared_client) -> None:
    stack = {"name": "torchtitan", "max_virtual_stages": 2, "node_limit": None}
    asked = {**changed(PREDICTION, "model", SHAPE), "stack": stack}
    first = shared_client.post("/v1/predictions", json=asked).json()
    second = shared_client.post("/v1/predictions", json=first["request"]).json()
    assert second["layouts"] == first["layouts"]
    assert second["request"] == first["request"]


def test_a_config_json_means_what_its_shape_means(shared_client) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        **without(SHAPE, "num_layers"),
    }
    by_config = shared_client.post(
        "/v1/predictions", json=changed(PREDICTION, "model", config)
    ).json()
    by_shape = shared_client.post(
        "/v1/predictions", json=changed(PREDICTION, "model", SHAPE)
    ).json()
    assert by_config["layouts"] == by_shape["layouts"]
    assert by_config["catalogue"]["architecture"]["source"] == "huggingface"
    assert by_shape["catalogue"]["architecture"]["source"] == "given"


def test_many_layouts_keep_their_order(shared_client) -> None:
    layouts = [{**LAYOUT, "recompute": recompute} for recompute in ("none", "selective", "full")]
    found = shared_client.post("/v1/predictions", json={**QUESTION, "layouts": layouts}).json()[
        "layouts"
    ]
    assert [item["layout"]["recompute"] for item in found] == ["none", "selective", "full"]


def test_as_many_layouts_as_allowed_are_predicted(shared_client) -> None:
    made = shared_client.post(
        "/v1/predictions", json={**QUESTION, "layouts": [LAYOUT] * MAX_LAYOUTS}
    )
    assert made.is_success
    assert len(made.json()["layouts"]) == MAX_LAYOUTS


@pytest.mark.parametrize("seq_len", [1, 10**7])
def test_extreme_sequences_have_an_answer(shared_client, seq_len: int) -> None:
    assert (
        shared_client.post(
            "/v1/predictions", json=changed(PREDICTION, "workload.seq_len", seq_len)
        ).status_code
        == 201
    )


def test_slower_scale_out_slows_a_step(shared_client) -> None:
    fast, slow = (
        shared_client.post(
            "/v1/predictions", json=changed(PREDICTION, "cluster.scale_out_gb_s", gb_s)
        ).json()
        for gb_s in (100, 1)
    )
    assert slow["layouts"][0]["step_time_s"] > fast["layouts"][0]["step_time_s"]
    assert slow["catalogue"]["fabric"]["links"][-1]["gb_s"] == 1


STAGES = {
    **PREDICTION,
    "model": "glm-4.5-air",
    "workload": {"seq_len": 4096, "global_batch": 64},
    "stack": "megatron",
    "layout": {"pp": 4, "ep": 16, "dp_shard": 16, "zero_stage": 1},
}


def test_a_layout_may_say_how_many_layers_each_stage_has(shared_client) -> None:
    def predicted(**more: Any) -> dict[str, Any]:
        body = {**STAGES, "layout": {**STAGES["layout"], **more}}
        made = shared_client.post("/v1/predictions", json=body)
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()["layouts"][0]
        return found

    best = predicted()
    assert "layers_per_chunk" not in best["layout"]
    same = predicted(layers_per_chunk=best["layers_per_chunk"])
    assert same["step_time_s"] == best["step_time_s"]
    assert same["needed_gib"] == best["needed_gib"]
    asked = [12, 12, 12, 10]
    other = predicted(layers_per_chunk=asked)
    assert other["layers_per_chunk"] == other["layout"]["layers_per_chunk"] == asked
    assert other["layout"]["balanced"] is True
    assert other["time"]["compute_s"] != best["time"]["compute_s"]
    slow = predicted(layers_per_chunk=[1, 22, 1, 22])
    assert slow["step_time_s"] > 1.3 * best["step_time_s"]
    kept = predicted(**other["layout"])
    assert kept["step_time_s"] == other["step_time_s"]


@pytest.mark.parametrize(
    ("more", "pointer", "rule"),
    [
        ({"layers_per_chunk": [12, 12, 12, 12]}, "/layout/layers_per_chunk", "adds up to 48"),
        ({"layers_per_chunk": [16, 15, 15]}, "/layout/layers_per_chunk", "= 4 chunks, and has 3"),
        ({"layers_per_chunk": [12, 12, 12, -10]}, "/layout/layers_per_chunk/3", "greater than"),
        (
            {"layers_per_chunk": [12, 12, 12, 10], "balanced": False},
            "/layout/balanced",
            "layers_per_chunk has unequal numbers",
        ),
    ],
)
def test_layers_that_no_model_has_are_refused(
    shared_client, more: dict[str, Any], pointer: str, rule: str
) -> None:
    body = {**STAGES, "layout": {**STAGES["layout"], **more}}
    refused = shared_client.post("/v1/predictions", json=body)
    (error,) = assert_problem(refused, "invalid", pointer)["errors"]
    assert rule in error["rule"]


def test_a_request_may_say_how_much_memory_is_usable(shared_client) -> None:
    presets = ({"preset": "h100"}, {"chip": "h100"})
    for cluster in presets:
        body = changed(PREDICTION, "cluster", {**cluster, "num_chips": 64, "usable_memory_gib": 63})
        made = shared_client.post("/v1/predictions", json=body).json()
        assert made["layouts"][0]["usable_gib"] == 63
        assert made["request"]["cluster"]["usable_memory_gib"] == 63


@pytest.mark.parametrize("usable_gib", [0, 81])
def test_more_memory_than_the_chip_has_is_refused(shared_client, usable_gib: float) -> None:
    body = changed(PREDICTION, "cluster.usable_memory_gib", usable_gib)
    refused = shared_client.post("/v1/predictions", json=body)
    assert_problem(refused, "invalid", "/cluster/usable_memory_gib")


def test_an_unchanged_prediction_is_not_sent_again(client) -> None:
    made = client.post("/v1/predictions", json=PREDICTION)
    etag = client.get(made.headers["location"]).headers["etag"]
    again = client.get(made.headers["location"], headers={"If-None-Match": f'"other", W/{etag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)


@pytest.mark.parametrize(("chips", "waits"), [(256, False), (512, True)])
def test_a_job_of_most_of_a_cluster_in_trouble_is_told_so(
    shared_client, chips: int, waits: bool
) -> None:
    layout = {"tp": 8, "dp_shard": chips // 8, "zero_stage": 3, "sequence_parallel": True}
    cluster = {"preset": "hf-science", "num_chips": chips}
    answer = shared_client.post(
        "/v1/predictions", json={**PREDICTION, "cluster": cluster, "layout": layout}
    ).json()
    assert any("node in trouble" in line for line in answer["assumptions"]) == waits


def test_what_needs_as_much_as_a_run_out_of_memory_is_predicted_with_a_warning(client) -> None:
    first = client.post("/v1/predictions", json=PREDICTION).json()
    assert (first["out_of_memory"], first["warnings"]) == ([], [])
    report = client.post(
        "/v1/reports", json={"prediction_id": first["id"], "outcome": "out_of_memory"}
    ).json()
    lighter = {**PREDICTION["layout"], "recompute": "full"}
    both = {**without(PREDICTION, "layout"), "layouts": [lighter, PREDICTION["layout"]]}
    again = client.post("/v1/predictions", json=both).json()
    assert [run["report_id"] for run in again["out_of_memory"]] == [report["id"]]
    (warning,) = again["warnings"]
    assert warning.startswith("layouts[1] is predicted to need")
    assert "this layout" in warning
    assert report["id"] in warning


def test_what_reports_need_is_worked_out_once(client, monkeypatch) -> None:
    looked_at: list[int] = []
    read = StoredRuns.read

    def counting(self: StoredRuns, reports: list[ReportRow]) -> object:
        looked_at.append(len(reports))
        return read(self, reports)

    monkeypatch.setattr(StoredRuns, "read", counting)
    for batch in (128, 256, 512):
        failed = {**changed(PREDICTION, "workload.global_batch", batch), "outcome": "out_of_memory"}
        newest = client.post("/v1/reports", json=failed).json()["id"]
        looked_at.clear()
        client.post("/v1/predictions", json=PREDICTION)
        again = client.post("/v1/predictions", json=PREDICTION).json()
        assert sum(looked_at) == 1
        assert [run["report_id"] for run in again["out_of_memory"]] == [newest]


def test_a_schedule_that_nobody_sent_is_not_blamed(shared_client) -> None:
    body = {**QUESTION, "model": "mixtral-8x7b", "layout": {"pp": 2, "dp_shard": 32}}
    body["workload"] = {**QUESTION["workload"], "load_balancing": "global_batch_loss"}
    settled = shared_client.post("/v1/predictions", json=body).json()
    assert settled["layouts"][0]["layout"]["schedule"] == "afab"
    assert "layout.schedule is afab: the stack's own" in settled["assumptions"]
    for layout, value in ((body["layout"], None), ({**body["layout"], "schedule": "1f1b"}, "1f1b")):
        answer = shared_client.post(
            "/v1/predictions", json={**body, "stack": "deepseek", "layout": layout}
        )
        (error,) = assert_problem(answer, "invalid", "/layout/schedule")["errors"]
        assert error["value"] == value
        assert "(afab), which stack deepseek lacks" in error["rule"]


def test_what_was_probably_not_meant_is_the_first_warning(shared_client) -> None:
    body = changed(PREDICTION, "workload.seq_len", 8191)
    (told,) = shared_client.post("/v1/predictions", json=body).json()["warnings"]
    assert told.startswith("check workload.seq_len = 8191: it is one short of 8192")
    assert shared_client.post("/v1/predictions", json=PREDICTION).json()["warnings"] == []


def test_a_launch_is_predicted_as_the_layout_that_it_says(shared_client) -> None:
    answer = shared_client.post("/v1/predictions", json=LAUNCHED)
    assert answer.is_success, answer.text
    body = answer.json()
    PredictionAnswer.model_validate(body)
    assert body["launch_read"]["format"] == "deepspeed"
    (layout,) = body["layouts"]
    assert (layout["layout"]["dp_shard"], layout["layout"]["zero_stage"]) == (64, 3)
    assert body["request"]["stack"] == "deepspeed"
    assert shared_client.get(answer.headers["Location"]).json() == body
    again = {name: body["request"][name] for name in ("model", "cluster", "workload", "stack")}
    plain = shared_client.post("/v1/predictions", json={**again, "layout": layout["layout"]})
    assert plain.json()["layouts"] == body["layouts"]


def test_a_launch_and_a_layout_do_not_go_together(shared_client) -> None:
    refused = shared_client.post("/v1/predictions", json={**LAUNCHED, "layout": {"dp_shard": 64}})
    assert_problem(refused, "invalid", "/layout")


FLAGS = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024"
    " --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 32000"
    " --micro-batch-size 1 --global-batch-size 8 --bf16"
)


@pytest.mark.parametrize(
    "arguments",
    [
        f"export WANDB_API_KEY=s3cr3t\n{FLAGS} --wandb-api-key s3cr3t --hub-token 's3cr3t'",
        [*FLAGS.split()[4:], "--wandb-api-key", "s3cr3t", "--hub-token=s3cr3t"],
        f"{FLAGS} --hub-token s3cr3t --num-layers many",
        f"{FLAGS} --hub-token s3cr3t 'unclosed",
        ["--hub-token", "s3cr3t", 5],
    ],
)
def test_secrets_of_a_launch_are_neither_repeated_nor_stored(shared_client, arguments: Any) -> None:
    launch = {"format": "megatron", "arguments": arguments}
    body = {"launch": launch, "cluster": {"preset": "h100", "num_chips": 8}}
    answer = shared_client.post("/v1/predictions", json=body)
    assert answer.status_code in (200, 201, 422), answer.text
    assert "s3cr3t" not in answer.text
    if answer.is_success:
        assert "--hub-token REDACTED" in str(answer.json()["launch_read"]["unread"])
        assert "s3cr3t" not in shared_client.get(answer.headers["Location"]).text


def test_a_refused_log_is_quoted_without_its_secrets(shared_client) -> None:
    log = "export WANDB_API_KEY=s3cr3t\nAuthorization: Bearer s3cr3t\n" + "nothing\n" * 20
    body = {"log": log, "run": {}, "outcome": "completed"}
    for path in ("/v1/reports/logs", "/v1/explanations"):
        refused = shared_client.post(path, json=body)
        assert refused.status_code == 422
        assert "s3cr3t" not in refused.text

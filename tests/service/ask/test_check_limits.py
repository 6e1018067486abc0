"""What a check calls illegal, what only a search does not reach, and what a job is held to."""

from __future__ import annotations

from typing import Any

import pytest

from service.schemas.check import CheckAnswer
from tests.service.asking import QUESTION

_LLAMA = (
    "--swiglu --normalization RMSNorm --disable-bias-linear"
    " --untie-embeddings-and-output-weights --position-embedding-type rope --seq-length 4096"
    " --max-position-embeddings 4096 --micro-batch-size 1 --bf16 --use-distributed-optimizer"
)
_70B = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
    " --group-query-attention --num-query-groups 8 --vocab-size 128256 --global-batch-size 128"
)
_8B = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    " --group-query-attention --num-query-groups 8 --vocab-size 128256 --global-batch-size 64"
)
_SPARSE = (
    "--num-layers 24 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 16"
    " --vocab-size 151936 --global-batch-size 64 --num-experts 64 --moe-ffn-hidden-size 1408"
    " --moe-router-topk 4 --moe-grouped-gemm --expert-model-parallel-size 8"
)
_ALLTOALL = "--moe-token-dispatcher-type alltoall"
_GRAPH = "--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad"
_STATIC = (
    "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep"
    " --moe-expert-rank-capacity-factor 1.5 --moe-paged-stash --use-transformer-engine-op-fuser"
    " --te-rng-tracker"
)


def megatron(nodes: int, *words: str) -> dict[str, Any]:
    command = f"torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py {_LLAMA}"
    return {
        "launch": {"format": "megatron", "arguments": " ".join((command, *words))},
        "cluster": {"preset": "h100"},
    }


def check(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/checks", json=body)
    assert answer.status_code == 200, answer.text
    CheckAnswer.model_validate(answer.json())
    return answer.json()


def test_more_virtual_stages_than_are_searched_are_predicted(shared_client) -> None:
    """Megatron-Core has no limit of 16: 80 layers in 4 stages with a layer a chunk are 20."""
    words = (
        "--tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 4"
        " --num-layers-per-virtual-pipeline-stage 1"
    )
    answer = check(shared_client, megatron(4, _70B, words))
    assert answer["legal"]
    assert answer["layout"]["virtual_stages"] == 20
    assert answer["prediction"]["step_time_s"] > 0


def test_gradients_sharded_by_megatron_fsdp_are_zero_2(shared_client) -> None:
    words = (
        "--use-megatron-fsdp --ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion"
        " --data-parallel-sharding-strategy optim_grads"
    )
    answer = check(shared_client, megatron(2, _8B, words))
    assert answer["legal"]
    assert answer["layout"]["zero_stage"] == 2


def test_fsdp_beside_tensor_parallelism_is_predicted(shared_client) -> None:
    """accelerate's ParallelismConfig."""
    document = {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_machines": 2,
        "num_processes": 16,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_activation_checkpointing": True,
        },
        "parallelism_config": {
            "parallelism_config_dp_shard_size": 4,
            "parallelism_config_tp_size": 4,
        },
    }
    body = {
        "launch": {"format": "accelerate", "arguments": document},
        "cluster": {"preset": "h100"},
        "model": "llama-3.3-70b",
        "workload": {"seq_len": 4096, "global_batch": 16},
    }
    answer = check(shared_client, body)
    assert answer["legal"]
    assert (answer["layout"]["tp"], answer["layout"]["dp_shard"]) == (4, 4)
    assert answer["prediction"]["time"]["tensor_s"] > 0


def test_a_stated_layout_that_is_not_searched_can_be_launched_as_predicted(shared_client) -> None:
    body = {**QUESTION, "layout": {"dp_shard": 64, "zero_stage": 2}, "stack": "megatron"}
    predicted = shared_client.post("/v1/predictions", json=body)
    assert predicted.status_code in (200, 201), predicted.text
    id_ = predicted.json()["id"]
    launch = shared_client.get(f"/v1/predictions/{id_}/launch/megatron")
    assert launch.status_code == 200, launch.text
    assert "optim_grads" in launch.text


@pytest.mark.parametrize(
    ("words", "legal"),
    [((_ALLTOALL, _GRAPH), False), ((_STATIC, _GRAPH), True), ((_ALLTOALL,), True)],
)
def test_a_graph_of_a_whole_sparse_step_needs_static_shapes(
    shared_client, words: tuple[str, ...], legal: bool
) -> None:
    answer = check(shared_client, megatron(1, _SPARSE, *words))
    assert answer["legal"] == legal
    if not legal:
        (broken,) = answer["broken_rules"]
        assert "--moe-paged-stash" in broken["rule"]
        assert broken["kind"] == "framework"
        changed = {one["name"]: one["to"] for one in answer["first_change"]["settings"]}
        assert changed["--cuda-graph-impl"] in ("none", "transformer_engine")
    first = answer["first_change"]
    assert first is None or "full_iteration" not in first["words"]


@pytest.mark.parametrize("reserve_gib", [0.0, 2.0, 70.0])
def test_a_check_holds_a_job_against_the_memory_to_leave_free(
    shared_client, reserve_gib: float
) -> None:
    body = {
        **QUESTION,
        "layout": {"dp_shard": 64, "zero_stage": 3, "recompute": "full"},
        "constraints": {"memory_reserve_gib": reserve_gib},
    }
    answer = check(shared_client, body)
    fits = answer["fits"]
    leaves = fits["needed_gib"] <= fits["usable_gib"]
    assert (answer["verdict"] != "will_not_fit") == leaves
    assert leaves == (reserve_gib < 70)
    assert fits["over_gib"] == max(fits["needed_gib"] - fits["usable_gib"], 0)
    if reserve_gib:
        assert f"{reserve_gib:g} GiB to leave free" in answer["summary"]


def test_a_check_says_which_constraints_the_job_is_outside_of(shared_client) -> None:
    layout = {"dp_shard": 8, "tp": 8, "zero_stage": 3}
    body = {**QUESTION, "layout": layout, "constraints": {"tp": [1, 2]}}
    (warning,) = (
        one
        for one in check(shared_client, body)["warnings"]
        if one["code"] == "outside_constraints"
    )
    assert warning["message"] == "the job has tp 8 where constraints.tp allows 1 or 2"
    inside = check(shared_client, {**body, "constraints": {"tp": 8}})
    assert "outside_constraints" not in {one["code"] for one in inside["warnings"]}

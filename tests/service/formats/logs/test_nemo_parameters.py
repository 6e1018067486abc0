"""The question that NeMo's parameters state."""

from __future__ import annotations

import pytest

from service.formats import logs
from service.formats.megatron.arguments import question
from service.schemas.architecture import ShapeFields
from service.schemas.layout import LayoutFields
from tests.service.formats.logs.dialects import dll_log, needs_folder, sample

NEMO = {
    "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 5,
    "context_parallel_size": 1, "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672,
    "num_attention_heads": 64, "num_query_groups": 8, "kv_channels": None, "bias": False,
    "activation": "fast-swiglu", "share_embeddings_and_output_weights": False,
    "sequence_parallel": True, "fp8": True, "activations_checkpoint_granularity": None,
    "optim/name": "distributed_fused_adam", "data/seq_length": 8192, "optim/betas": [0.9, 0.95],
    "precision": "bf16-mixed",
}  # fmt: skip


AROUND = (
    "[NeMo I 2025-06-11 01:53:27 nemo_logging:393] Padded vocab_size: 50432, original vocab_size:"
    " 50257, dummy: 175.\nInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/64\n"
)


def nemo_log(**changes: object) -> str:
    given = {**NEMO, **changes}
    line = "  ".join(f"cfg/{name} : {value}" for name, value in given.items())
    return (
        f"{AROUND}DLL 2025-06-11 01:54:41.446837 - PARAMETER {line}"
        f" \n{dll_log([9.0, 4.0, 4.0, 4.0], 1)}"
    )


def of_nemo(**changes: object) -> dict:
    return dict(question(logs.read(nemo_log(**changes)).arguments))


def test_the_parameters_of_nemo_are_the_question_that_they_state() -> None:
    found = of_nemo()
    model = ShapeFields.model_validate(found["model"]).build()
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (80, 8192, 50432)
    assert model.parameters.total == pytest.approx(69.3e9, rel=5e-3)
    assert found["workload"] == {
        "seq_len": 8192,
        "global_batch": 128,
        "precision": "fp8",
        "optimizer": "adamw",
    }
    layout = LayoutFields.model_validate(found["layout"]).build()
    assert (layout.tp, layout.pp, layout.virtual_stages, layout.dp_shard, layout.zero_stage) == (
        2,
        4,
        5,
        8,
        1,
    )
    assert (layout.recompute, layout.sequence_parallel, found["num_chips"]) == ("none", True, 64)


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        ({"fp8": False}, "workload", {"precision": "bf16"}),
        ({"fp8": False, "precision": 16}, "workload", {"precision": "fp16"}),
        ({"fp8": False, "precision": 32}, "workload", {"precision": "fp32"}),
        (
            {"optim/name": "fused_adam"},
            "layout",
            {"dp_shard": 1, "dp_replicate": 8, "zero_stage": 0},
        ),
        ({"activations_checkpoint_granularity": "selective"}, "layout", {"recompute": "selective"}),
        (
            {
                "activations_checkpoint_granularity": "full",
                "activations_checkpoint_method": "block",
                "activations_checkpoint_num_layers": 2,
            },
            "layout",
            {"recompute": "full", "recompute_layers": 2},
        ),
        ({"num_query_groups": None}, "model", {"num_key_value_heads": 64}),
        ({"activation": "gelu"}, "model", {"gated_mlp": False}),
        ({"share_embeddings_and_output_weights": True}, "model", {"tie_word_embeddings": True}),
    ],
)
def test_one_parameter_of_nemo_changes_what_it_means(
    changes: dict, part: str, expected: dict
) -> None:
    found = of_nemo(**changes)
    assert {name: found[part].get(name) for name in expected} == expected


def test_a_nemo_log_without_parameters_states_nothing() -> None:
    assert logs.read(AROUND + dll_log([9.0, 4.0, 4.0, 4.0], 1)).arguments == {}


@needs_folder
@pytest.mark.parametrize(
    ("name", "chips", "tp", "pp", "virtual", "micro_batch"),
    [("nemo-llama3-70b-64xb200.log", 64, 2, 4, 5, 1), ("nemo-llama3-8b-8xb200.log", 8, 1, 1, 1, 2)],
)
def test_a_real_log_of_nemo_says_what_ran(
    name: str, chips: int, tp: int, pp: int, virtual: int, micro_batch: int
) -> None:
    found = dict(question(logs.read(sample(name)).arguments))
    layout = found["layout"]
    assert (found["num_chips"], layout["tp"], layout["pp"], layout["virtual_stages"]) == (
        chips,
        tp,
        pp,
        virtual,
    )
    assert (layout["micro_batch"], found["workload"]["precision"]) == (micro_batch, "fp8")
    assert found["model"]["vocab_size"] > 50257

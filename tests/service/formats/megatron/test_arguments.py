"""The question that a dump of Megatron's arguments states."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats import logs
from service.formats.megatron.arguments import question
from service.formats.megatron.derived import filled_in
from service.formats.megatron.flags import kind_of_argument
from service.schemas.architecture import ShapeFields
from service.schemas.layout import LayoutFields
from service.schemas.workload import WorkloadFields
from tests.long import examples
from tests.paths import ROOT
from tests.service.formats.logs.dialects import DEEPSEEK, LLAMA, asked, dump, megatron, text


def test_the_arguments_say_which_batch_a_ramp_up_leads_to() -> None:
    rising = [
        *(megatron(100 + k, 1000.0, batch=32) for k in range(6)),
        *(megatron(110 + k, 4000.0) for k in range(3)),
    ]
    assert logs.read(text([dump(global_batch_size=128), *rising])).global_batch == 128


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "make_vocab_size_divisible_by"])
def test_a_number_without_end_is_no_size(name: str) -> None:
    values = {"hidden_size": "64", "vocab_size": "500", name: "9" * 5000}
    width, size = (filled_in(values).get(name) for name in ("ffn_hidden_size", "padded_vocab_size"))
    assert (width is None) == (name == "hidden_size")
    assert (size == "None") == (name == "vocab_size")


def test_a_dense_run_is_the_question_it_states() -> None:
    found = asked(**LLAMA)
    model = ShapeFields.model_validate(found["model"]).build()
    assert model.parameters.total == pytest.approx(8.03e9, rel=1e-3)
    assert found["workload"] == {
        "seq_len": 8192,
        "global_batch": 128,
        "precision": "bf16",
        "optimizer": "adamw",
    }
    WorkloadFields.model_validate(found["workload"]).build()
    layout = LayoutFields.model_validate(found["layout"]).build()
    assert (layout.tp, layout.pp, layout.dp_shard, layout.dp_replicate, layout.ep, layout.etp) == (
        2,
        1,
        32,
        1,
        1,
        1,
    )
    assert (layout.zero_stage, layout.micro_batch, layout.schedule, layout.recompute) == (
        1,
        2,
        "1f1b",
        "none",
    )
    assert layout.sequence_parallel
    assert found["num_chips"] == layout.num_devices == 64


def test_a_mixture_of_experts_is_the_question_it_states() -> None:
    found = asked(**DEEPSEEK)
    model = ShapeFields.model_validate(found["model"]).build()
    assert model.parameters.total == pytest.approx(671e9, rel=5e-3)
    assert [layer.moe is not None for layer in model.layers] == [False] * 3 + [True] * 58
    assert found["model"]["mla"]["qk_nope_head_dim"] == 128
    assert found["model"]["mtp_layers"] == 1
    workload = WorkloadFields.model_validate(found["workload"]).build()
    assert (workload.precision, workload.optimizer, workload.routing) == (
        "mxfp8",
        "adamw_bf16_moments",
        "balanced",
    )
    layout = LayoutFields.model_validate(found["layout"]).build()
    assert (layout.tp, layout.pp, layout.dp_shard, layout.ep, layout.etp) == (2, 8, 64, 64, 1)
    assert (layout.schedule, layout.virtual_stages, layout.balanced) == ("interleaved", 4, True)
    assert (layout.zero_stage, layout.recompute, layout.recompute_modules) == (
        1,
        "selective",
        ("mla_up_proj", "mlp"),
    )
    assert found["num_chips"] == layout.num_devices == 1024


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        (
            {"use_distributed_optimizer": False},
            "layout",
            {"dp_shard": 1, "dp_replicate": 32, "zero_stage": 0},
        ),
        (
            {"num_distributed_optimizer_instances": 4},
            "layout",
            {"dp_shard": 8, "dp_replicate": 4, "zero_stage": 1},
        ),
        ({"use_megatron_fsdp": True}, "layout", {"dp_shard": 32, "zero_stage": 3, "reshard": True}),
        (
            {"use_torch_fsdp2": True, "torch_fsdp2_reshard_after_forward": False},
            "layout",
            {"reshard": False},
        ),
        ({"world_size": None}, "layout", {"dp_shard": 32}),
        ({"data_parallel_size": None}, "layout", {"dp_shard": 32}),
        (
            {"tensor_model_parallel_size": 1, "data_parallel_size": 64},
            "layout",
            {"sequence_parallel": False},
        ),
        ({"recompute_granularity": "full"}, "layout", {"recompute": "full"}),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": 3,
            },
            "layout",
            {"recompute": "full", "recompute_layers": 3},
        ),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 3,
            },
            "layout",
            {"recompute": "full", "recompute_layers": None},
        ),
        (
            {"cpu_offloading_num_layers": 4},
            "layout",
            {"offload_activations": True, "offload_optimizer": False},
        ),
        ({"optimizer_cpu_offload": True}, "layout", {"offload_optimizer": True}),
        (
            {
                "pipeline_model_parallel_size": 4,
                "num_layers_per_virtual_pipeline_stage": 2,
                "data_parallel_size": 8,
            },
            "layout",
            {"pp": 4, "schedule": "interleaved", "virtual_stages": 4, "balanced": False},
        ),
        (
            {
                "pipeline_model_parallel_size": 4,
                "data_parallel_size": 8,
                "decoder_first_pipeline_num_layers": 7,
            },
            "layout",
            {"schedule": "1f1b", "virtual_stages": 1, "balanced": True},
        ),
        ({"group_query_attention": False}, "model", {"num_key_value_heads": 32}),
        ({"padded_vocab_size": 128512}, "model", {"vocab_size": 128512}),
        ({"swiglu": False}, "model", {"gated_mlp": False}),
        ({"untie_embeddings_and_output_weights": False}, "model", {"tie_word_embeddings": True}),
        ({"window_size": "(127, 0)"}, "model", {"sliding_window": 128}),
        (
            {"window_size": "(127, 0)", "window_attn_skip_freq": 2},
            "model",
            {"sliding_window": 128, "full_attention_period": 2},
        ),
        (
            {"window_size": "(511, 0)", "window_attn_skip_freq": [1, 1, 1, 0] * 8},
            "model",
            {"sliding_window": 512, "full_attention_period": 4},
        ),
        ({"fp8": "hybrid"}, "workload", {"precision": "fp8"}),
        ({"fp4": "e2m1"}, "workload", {"precision": "nvfp4"}),
        ({"bf16": False, "fp16": True}, "workload", {"precision": "fp16"}),
        ({"bf16": False}, "workload", {"precision": "fp32"}),
        ({"optimizer": "sgd"}, "workload", {"optimizer": "sgd_momentum"}),
    ],
)
def test_one_argument_changes_what_it_means(changes: dict, part: str, expected: dict) -> None:
    found = asked(**{**LLAMA, **changes})
    assert {name: found[part].get(name) for name in expected} == expected
    ShapeFields.model_validate(found["model"]).build()
    WorkloadFields.model_validate(found["workload"]).build()
    assert (
        LayoutFields.model_validate(found["layout"]).build().num_devices == found["num_chips"] == 64
    )


@pytest.mark.parametrize(
    ("frequency", "sparse"),
    [
        (1, [True] * 8),
        ([0, 1, 1, 1, 1, 1, 1, 1], [False] + [True] * 7),
        (2, [False, True] * 4),
        ("([0]*3+[1])*2", [False, False, False, True] * 2),
        ("[0]*2+[1]*6", [False] * 2 + [True] * 6),
    ],
)
def test_sparse_layers_are_where_the_frequency_puts_them(
    frequency: object, sparse: list[bool]
) -> None:
    arguments = {
        **DEEPSEEK,
        "num_layers": 8,
        "moe_layer_freq": frequency,
        "pipeline_model_parallel_layout": None,
    }
    model = ShapeFields.model_validate(asked(**arguments)["model"]).build()
    assert [layer.moe is not None for layer in model.layers] == sparse


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_layers", None), ("num_layers", "many"), ("num_layers", 0), ("num_layers", 10**9),
        ("num_layers", "9" * 5000), ("hidden_size", None), ("ffn_hidden_size", None),
        ("num_attention_heads", "1.5"),
        ("num_query_groups", None),
        ("vocab_size", None), ("seq_length", None), ("global_batch_size", -1),
        ("micro_batch_size", None),
        ("tensor_model_parallel_size", 3), ("world_size", 63), ("swiglu", "maybe"),
        ("optimizer", "soap"),
        ("recompute_granularity", "some"), ("window_size", "wide"),
        ("num_distributed_optimizer_instances", 5),
        ("is_hybrid_model", True), ("hybrid_override_pattern", "M-M*X"),
            ("experimental_attention_variant", "dsv4_hybrid"),
    ],
)  # fmt: skip
def test_an_argument_that_cannot_be_used_is_named(name: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        asked(**{**LLAMA, name: value})
    named = "world_size" if name == "tensor_model_parallel_size" else name
    assert refused.value.field == f"log.arguments.{named}"
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("moe_layer_freq", "[0]*3+[1]*57"), ("moe_layer_freq", "[0]*61"),
        ("moe_layer_freq", "[1,1,0]*20+[1]"),
        ("moe_layer_freq", "__import__('os').abort()"), ("moe_layer_freq", "[1]*9999999"),
        ("moe_router_topk", None),
        ("kv_lora_rank", None), ("num_experts", 1), ("num_layers_per_virtual_pipeline_stage", 2),
    ],
)  # fmt: skip
def test_experts_that_cannot_be_read_are_named(name: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        asked(**{**DEEPSEEK, "virtual_pipeline_model_parallel_size": None, name: value})
    assert refused.value.field == f"log.arguments.{name}"


OTHER_VERSIONS = (
    "checkpoint_activations", "activations_checkpoint_method", "batch_size", "model_parallel_size",
    "deepspeed", "zero_stage", "expert_interval", "topk", "glu_activation", "num_key_value_heads",
)  # fmt: skip


@settings(max_examples=examples(200))
@given(
    st.dictionaries(
        st.sampled_from([*DEEPSEEK, "window_attn_skip_freq", "use_torch_fsdp2", *OTHER_VERSIONS]),
        st.text(max_size=20)
        | st.integers().map(str)
        | st.sampled_from(["None", "True", "(1,1)", "[1]*61", "(" * 9, "[1]", "[16]", "1.0"]),
        max_size=6,
    )
)
def test_no_arguments_raise_anything_else(changes: dict[str, str]) -> None:
    refused = "log.arguments."
    try:
        found = question({name: str(value) for name, value in DEEPSEEK.items()} | changes)
    except Invalid as error:
        refused = error.field
    else:
        assert set(found) == {"model", "workload", "layout", "num_chips"}
    assert refused.startswith("log.arguments.")


def test_arguments_are_asked_for_by_the_kind_that_their_flag_has() -> None:
    kinds = {"integer": "int", "required": "int", "boolean": "bool"}
    folders = (ROOT / "service/formats/megatron", ROOT / "service/formats/launch/megatron")
    found = [
        match.groups()
        for folder in folders
        for path in folder.glob("*.py")
        for match in re.finditer(r'args\.(integer|required|boolean)\("(\w+)"', path.read_text())
    ]
    assert len(found) > 50
    for method, argument in found:
        assert kind_of_argument(argument) == kinds[method], argument

"""What a stack refuses to launch, as its own code says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from models.errors import Invalid
from models.layouts.rules import RULES_BY_NAME, broken_rules, lift_search_limits, require_legal
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.formats.huggingface import read
from tests.benchmarks.problems import problem

_INSIDE = ("tp", "cp", "pp", "dp_shard", "dp_replicate")


def _expect(asked: Problem, layout: Layout, refusal: str | None, field: str = "layout") -> None:
    """That the layout is legal, or that it is refused so, by the name of a field that begins so."""
    if refusal is None:
        require_legal(asked, layout)
        return
    with pytest.raises(Invalid, match=refusal) as refused:
        require_legal(asked, layout)
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("model", "degrees", "legal"),
    [
        ("llama-3-8b", {"pp": 2, "tp": 2, "dp_shard": 16}, True),
        ("llama-3-8b", {"pp": 2, "cp": 2, "dp_shard": 16}, False),
        ("mixtral-8x7b", {"pp": 2, "tp": 2, "cp": 2, "ep": 4, "dp_shard": 8}, True),
        ("mixtral-8x7b", {"pp": 2, "tp": 4, "ep": 2, "etp": 2, "dp_shard": 8}, True),
        ("mixtral-8x7b", {"pp": 2, "ep": 8, "dp_shard": 32}, False),
        ("mixtral-8x7b", {"pp": 1, "ep": 8, "dp_shard": 64}, True),
    ],
)
def test_a_pipeline_inside_data_parallelism_needs_as_many_replicas_of_experts_as_of_the_rest(
    model: str, degrees: dict[str, int], legal: bool
) -> None:
    """The assertion of Megatron-Core's initialize_model_parallel on orders that do not end with
    pp."""
    asked = problem(model, ("h100", 64), "megatron", seq_len=4096, global_batch=256)
    layout = Layout(
        **degrees, sequence_parallel=degrees.get("tp", 1) > 1, zero_stage=1, placement=_INSIDE
    )
    _expect(asked, layout, None if legal else r"ep·etp", "layout.placement")


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (Layout(dp_shard=64, zero_stage=3, offload_activations=True), None),
        (
            Layout(pp=2, dp_shard=32, zero_stage=1, offload_activations=True),
            "without a pipeline only",
        ),
        (
            Layout(dp_shard=64, zero_stage=3, recompute="full", offload_activations=True),
            "without recompute only",
        ),
    ],
)
def test_megatron_offloads_activations_beside_neither_pipeline_nor_recompute(
    layout: Layout, rule: str | None
) -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=4096, global_batch=256)
    _expect(asked, layout, rule)


@pytest.mark.parametrize("stack", ["maxtext", "paxml", "axlearn"])
def test_a_pipeline_that_is_a_scan_holds_all_micro_batches(stack: str) -> None:
    asked = problem("llama-3-8b", ("h100", 64), stack, seq_len=4096, global_batch=256)
    for schedule in ("1f1b", "interleaved"):
        with pytest.raises(Invalid, match="afab"):
            require_legal(
                asked,
                Layout(pp=2, dp_shard=32, zero_stage=0, schedule=schedule, sequence_parallel=False),
            )


@pytest.mark.parametrize(
    ("stack", "layout", "rule"),
    [
        ("deepspeed", Layout(pp=2, dp_shard=32, zero_stage=1), None),
        ("deepspeed", Layout(pp=2, cp=2, dp_shard=16, zero_stage=1), "cp.2. must be 1"),
        ("deepspeed", Layout(pp=2, dp_shard=32, zero_stage=3), "ZeRO up to 1 beside a pipeline"),
        ("fsdp", Layout(pp=2, dp_shard=32, zero_stage=3), "pp.2. must be 1"),
        ("llm-foundry", Layout(pp=2, dp_shard=32, zero_stage=3), "no pipeline parallelism: pp.2."),
        ("megatron", Layout(tp=16, dp_shard=4, zero_stage=1, sequence_parallel=True), None),
        ("torchtitan", Layout(tp=16, dp_shard=4, zero_stage=3, sequence_parallel=True), "heads"),
        ("nanotron", Layout(tp=16, dp_shard=4, zero_stage=1, sequence_parallel=True), "heads"),
    ],
)
def test_stacks_refuse_what_their_code_refuses(
    stack: str, layout: Layout, rule: str | None
) -> None:
    asked = problem("llama-3-8b", ("h100", 64), stack, seq_len=4096, global_batch=256)
    _expect(asked, layout, rule)


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (
            Layout(
                dp_shard=64,
                tp=4,
                ep=8,
                etp=4,
                sequence_parallel=True,
                zero_stage=3,
                recompute="full",
            ),
            None,
        ),
        (
            Layout(dp_shard=64, tp=4, ep=8, sequence_parallel=True, zero_stage=3, recompute="full"),
            "etp.1. must be tp.4.",
        ),
        (
            Layout(
                dp_shard=4,
                dp_replicate=16,
                tp=4,
                ep=8,
                etp=4,
                sequence_parallel=True,
                zero_stage=3,
                recompute="full",
            ),
            "divide dp_shard.4.",
        ),
        (
            Layout(dp_shard=64, tp=4, ep=8, etp=4, sequence_parallel=True, zero_stage=1),
            "need ZeRO 3, not 1",
        ),
        (Layout(dp_shard=256, ep=8, zero_stage=3, recompute="full"), None),
    ],
)
def test_maxtext_shards_experts_over_tensor_parallelism(layout: Layout, rule: str | None) -> None:
    """base.yml: 'mlp_moe' lies on 'tensor', and 'expert' is an axis beside it."""
    asked = problem("mixtral-8x7b", ("tpu-v6e", 256), "maxtext", seq_len=4096, global_batch=2048)
    _expect(asked, layout, rule)


@pytest.mark.parametrize(
    ("stack", "pp", "global_batch", "rule"),
    [
        ("torchtitan", 8, 8, None),
        ("torchtitan", 8, 4, "at least pp micro-batches"),
        ("maxtext", 4, 16, None),
        ("maxtext", 4, 6, "a multiple of pp micro-batches"),
        ("megatron", 8, 4, None),
    ],
)
def test_a_plain_pipeline_needs_as_many_micro_batches_as_its_code_says(
    stack: str, pp: int, global_batch: int, rule: str | None
) -> None:
    """torch.distributed.pipelining PipelineScheduleSingle; MaxText num_pipeline_microbatches."""
    asked = problem("llama-3-8b", ("h100", pp), stack, seq_len=4096, global_batch=global_batch)
    schedule = "afab" if stack == "maxtext" else "1f1b"
    _expect(asked, Layout(pp=pp, schedule=schedule, recompute="full"), rule, "layout.schedule")


@pytest.mark.parametrize(
    ("stack", "workload", "layout", "rule"),
    [
        (
            "maxtext",
            {"precision": "fp8"},
            Layout(dp_shard=64, zero_stage=3, recompute="full", micro_batch=4),
            None,
        ),
        (
            "maxtext",
            {"precision": "fp8"},
            Layout(dp_shard=64, zero_stage=3, recompute="full"),
            "accumulates no gradients in fp8",
        ),
        ("maxtext", {}, Layout(dp_shard=64, zero_stage=3, recompute="full"), None),
        ("maxtext", {}, Layout(dp_replicate=2, dp_shard=32, zero_stage=3, recompute="full"), None),
        ("maxtext", {}, Layout(dp_replicate=2, dp_shard=32, zero_stage=1), "beside replicas 3"),
        ("megatron", {"optimizer": "muon"}, Layout(dp_shard=64, zero_stage=1), None),
        (
            "megatron",
            {"optimizer": "muon"},
            Layout(dp_shard=64, zero_stage=3),
            "Muon with ZeRO stages 0, 1",
        ),
        (
            "megatron",
            {"optimizer": "muon"},
            Layout(dp_shard=64, zero_stage=1, offload_optimizer=True),
            "muon",
        ),
        ("deepspeed", {}, Layout(dp_replicate=64, offload_optimizer=True), "shards of ZeRO 1 to 3"),
        (
            "colossalai",
            {},
            Layout(
                pp=2,
                dp_shard=32,
                zero_stage=2,
                schedule="1f1b",
                placement=("tp", "cp", "pp", "dp_shard", "dp_replicate"),
            ),
            "ZeRO up to 1 beside a pipeline",
        ),
    ],
)
def test_what_goes_together_is_what_the_code_has(
    stack: str, workload: dict[str, Any], layout: Layout, rule: str | None
) -> None:
    asked = problem(
        "llama-3-8b", ("h100", 64), stack, **{"seq_len": 4096, "global_batch": 256, **workload}
    )
    _expect(asked, layout, rule)


@pytest.mark.parametrize(("pp", "cp", "legal"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_torchtitan_predicts_several_tokens_without_pipeline_and_context_parallelism(
    pp: int, cp: int, legal: bool
) -> None:
    """models/deepseek_v3/mtp.py."""
    asked = problem("deepseek-v3", ("h200", 512), "torchtitan", seq_len=4096, global_batch=2048)
    layout = Layout(
        pp=pp,
        cp=cp,
        dp_shard=512 // pp // cp,
        ep=8,
        zero_stage=3,
        balanced=pp > 1,
        recompute="full",
    )
    _expect(asked, layout, None if legal else "multi-token prediction")


@pytest.mark.parametrize(("stack", "legal"), [("torchtitan", False), ("megatron", True)])
def test_torchtitan_has_no_pipeline_for_tied_embeddings(stack: str, legal: bool) -> None:
    """models/common/decoder.py: weight tying is not supported with pipeline parallelism."""
    asked = problem("qwen3-4b", ("h100", 64), stack, seq_len=4096, global_batch=256)
    assert asked.architecture.tie_word_embeddings
    stage = asked.stack.zero_stages[1]
    layout = Layout(pp=2, dp_shard=32, zero_stage=stage, recompute="full")
    _expect(asked, layout, None if legal else "ties its embedding")


@pytest.mark.parametrize(
    ("cp", "ep", "zero_stage", "legal"),
    [(2, 2, 3, False), (2, 2, 2, True), (1, 2, 3, True), (2, 1, 3, True)],
)
def test_deepspeed_has_experts_under_zero_3_without_context_parallelism_only(
    cp: int, ep: int, zero_stage: int, legal: bool
) -> None:
    """engine.py, _validate_zero3_moe_compatibility."""
    asked = problem("mixtral-8x7b", ("h100", 64), "deepspeed", seq_len=4096, global_batch=256)
    layout = Layout(dp_shard=64 // cp, cp=cp, ep=ep, zero_stage=zero_stage)
    _expect(asked, layout, None if legal else "only without context parallelism")


@pytest.mark.parametrize(
    ("stack", "refusal"),
    [
        ("megatron", None),
        (
            "torchtitan",
            r"divide the 32 attention heads, and stack torchtitan repeats none: divide the 8",
        ),
    ],
)
def test_heads_that_are_not_repeated_have_to_be_divided(stack: str, refusal: str | None) -> None:
    asked = problem("llama-3-8b", ("h100", 64), stack, seq_len=4096, global_batch=256)
    layout = Layout(
        tp=16, dp_shard=4, sequence_parallel=True, zero_stage=1 if stack == "megatron" else 3
    )
    _expect(asked, layout, refusal, "layout.tp")


@pytest.mark.parametrize(
    ("degrees", "refusal", "field"),
    [
        (
            {"cp": 4, "dp_shard": 16},
            r"seq_len\(4100\) must be a multiple of 2\*cp\(4\)$",
            "layout.cp",
        ),
        ({"tp": 8, "dp_shard": 8}, r"multiple of tp\(8\) with sequence", "layout.tp"),
        (
            {"tp": 4, "cp": 2, "dp_shard": 8},
            r"multiple of 2\*cp\(2\) times tp\(4\) with sequence",
            "layout.tp",
        ),
        ({"tp": 4, "dp_shard": 16}, None, "layout"),
    ],
)
def test_a_sequence_is_divided_by_the_axis_that_is_named(
    degrees: dict[str, int], refusal: str | None, field: str
) -> None:
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=4100, global_batch=256)
    _expect(
        asked, Layout(**degrees, sequence_parallel="tp" in degrees, zero_stage=1), refusal, field
    )


@pytest.mark.parametrize(
    ("chip", "precision", "refused"),
    [
        ("mi350x", "nvfp4", "NVIDIA's tensor cores"),
        ("mi350x", "mxfp8", None),
        ("b200", "nvfp4", None),
        ("h100", "mxfp8", "scale by blocks"),
    ],
)
def test_formats_of_one_vendor_s_matrix_units_are_refused_on_others(
    chip: str, precision: str, refused: str | None
) -> None:
    asked = problem("llama-3-8b", (chip, 8), "megatron", seq_len=4096, global_batch=64)
    workload = replace(asked.workload, precision=precision)
    if refused is None:
        require_legal(replace(asked, workload=workload), Layout(dp_shard=8, zero_stage=1))
        return
    with pytest.raises(Invalid, match=refused):
        replace(asked, workload=workload)


@pytest.mark.parametrize(
    ("stack", "precision", "tp", "refused"),
    [
        (
            "megatron",
            "mxfp8",
            8,
            r"multiples of 32 under mxfp8.* over tp\(8\)",
        ),  # 29568 / 8 = 115.5 · 32
        ("megatron", "mxfp8", 4, None),
        ("megatron", "fp8", 8, None),  # 231 · 16
        ("megatron", "bf16", 8, None),
        ("torchtitan", "mxfp8", 8, None),
    ],
)
def test_transformer_engine_takes_whole_blocks(
    stack: str, precision: str, tp: int, refused: str | None
) -> None:
    """MXFP8 has 32 elements to a scale; fp8 products take multiples of 16."""
    asked = problem("qwen2.5-72b", ("b200", 64), stack, seq_len=4096, global_batch=64)
    asked = replace(asked, workload=replace(asked.workload, precision=precision))
    zero = 3 if stack == "torchtitan" else 1
    layout = Layout(dp_shard=64 // tp, tp=tp, sequence_parallel=True, zero_stage=zero)
    _expect(asked, layout, refused, "layout.tp")


@pytest.mark.parametrize(("etp", "refused"), [(1, None), (2, None), (4, r"experts over etp\(4\)")])
def test_experts_of_mxfp8_are_divided_in_whole_blocks(etp: int, refused: str | None) -> None:
    """2880 elements of gpt-oss are 90 blocks."""
    asked = problem(
        "gpt-oss-120b", ("b200", 64), "megatron", seq_len=4096, global_batch=64, precision="mxfp8"
    )
    layout = Layout(dp_shard=16, tp=4, etp=etp, ep=4, sequence_parallel=True, zero_stage=1)
    _expect(asked, layout, refused, "layout.tp")


@pytest.mark.parametrize(
    ("stack", "layers", "refusal"),
    [
        ("megatron", (12, 12, 12, 10), None),
        ("megatron", (1, 20, 5, 20), None),
        ("megatron", (12, 12, 12, 12), r"adds up to 48, must to the 46 layers of glm-4.5-air"),
        ("megatron", (0, 16, 15, 15), r"each chunk needs a layer$"),
        ("nanotron", (12, 12, 12, 10), "stack nanotron splits layers by their cost; leave it out"),
    ],
)
def test_layers_that_are_stated_are_those_of_the_model(
    stack: str, layers: tuple[int, ...], refusal: str | None
) -> None:
    asked = problem("glm-4.5-air", ("h100", 64), stack, seq_len=4096, global_batch=64)
    layout = Layout(pp=4, ep=16, dp_shard=16, zero_stage=1, balanced=True, layers_per_chunk=layers)
    _expect(asked, layout, refusal, "layout.layers_per_chunk")


def test_only_ends_that_are_dealt_out_in_rounds_may_be_without_layers() -> None:
    asked = problem("llama-3-8b", ("h100", 8), "megatron", seq_len=4096, global_batch=64)
    layout = Layout(
        pp=2, virtual_stages=3, dp_shard=4, zero_stage=1, schedule="interleaved", balanced=True,
        layers_per_chunk=(7, 7, 7, 6, 5, 0),
    )  # fmt: skip
    _expect(asked, layout, None)
    for layers in ((7, 7, 0, 7, 7, 4), (0, 8, 8, 8, 8, 0)):
        refusal = None if layers[2] else "but for the first and the last"
        _expect(asked, replace(layout, layers_per_chunk=layers), refusal)


@pytest.mark.parametrize(
    ("dp_shard", "micro_batch", "field", "told"),
    [
        (64, 3, "layout.micro_batch", "micro_batch may be 2 or 4"),
        (64, 100, "layout.micro_batch", "micro_batch may be 8"),
        (60, 1, "workload.global_batch", "the nearest such batches are 480 and 540"),
        (60, 2, "workload.global_batch", "the nearest such batches are 480 and 600"),
        (1024, 1, "workload.global_batch", "the nearest such batch is 1024"),
    ],
)
def test_a_batch_that_does_not_divide_is_told_with_what_does(
    dp_shard: int, micro_batch: int, field: str, told: str
) -> None:
    """The batch is to blame where the data-parallel ranks do not divide it."""
    asked = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=512)
    layout = Layout(dp_shard=dp_shard, micro_batch=micro_batch)
    rule = RULES_BY_NAME["batch_divides"]
    assert rule.message(asked, layout).endswith(told)
    assert rule.blamed_field(asked, layout) == field


@pytest.mark.parametrize(
    ("stack", "workload", "layout", "refusal"),
    [
        (
            "torchtitan",
            {},
            Layout(dp_replicate=32, cp=2, recompute="selective"),
            r"cp\(2\) needs ZeRO 2 or more",
        ),
        ("torchtitan", {}, Layout(dp_shard=32, cp=2, zero_stage=3, recompute="selective"), None),
        (
            "megatron",
            {"optimizer": "adamw_bf16_moments"},
            Layout(dp_replicate=64),
            "adamw_bf16_moments with ZeRO stages 1, 2, 3",
        ),
        (
            "megatron",
            {"optimizer": "sgd_momentum"},
            Layout(dp_shard=64, zero_stage=1, offload_optimizer=True),
            "no optimizer that is sgd_momentum",
        ),
        ("fsdp", {"precision": "fp8"}, Layout(dp_replicate=64), "fp8 with ZeRO stages 3"),
        (
            "fsdp",
            {},
            Layout(dp_shard=64, zero_stage=3, offload_activations=True),
            "activations with full recompute only",
        ),
        (
            "fsdp",
            {},
            Layout(dp_shard=64, zero_stage=2, offload_activations=True, recompute="full"),
            "offloads activations with ZeRO 3 only",
        ),
        (
            "deepspeed",
            {},
            Layout(pp=2, tp=2, dp_shard=16, zero_stage=1),
            "tp.2. must be 1 beside pp.2.",
        ),
    ],
)
def test_a_stack_has_some_things_only_beside_others(
    stack: str, workload: dict[str, Any], layout: Layout, refusal: str | None
) -> None:
    asked = problem("llama-3-8b", ("h100", 64), stack, seq_len=4096, global_batch=256, **workload)
    _expect(asked, layout, refusal)


@pytest.mark.parametrize(
    ("stack", "layout", "refusal"),
    [
        ("megatron", Layout(cp=8, dp_shard=8, zero_stage=1), None),
        ("megatron", Layout(tp=4, cp=2, dp_shard=8, zero_stage=1, sequence_parallel=True), None),
        ("megatron", Layout(tp=16, dp_shard=4, zero_stage=1, sequence_parallel=True), None),
        (
            "megatron",
            Layout(tp=4, cp=4, dp_shard=4, zero_stage=1, sequence_parallel=True),
            r"cp\(4\) \* tp\(4\) must divide the 32 attention heads, and divide the 8 key-value",
        ),
        ("megatron", Layout(cp=16, dp_shard=4, zero_stage=1), "divide the 8 key-value"),
        ("maxtext", Layout(cp=16, dp_shard=4, zero_stage=3), "divide the 8 key-value"),
        ("deepspeed", Layout(cp=16, dp_shard=4, zero_stage=3), None),
        ("deepspeed", Layout(cp=64, zero_stage=0), "be a multiple of the 8 key-value"),
        ("fsdp", Layout(cp=16, dp_shard=4, zero_stage=3), None),
    ],
)
def test_only_deepspeed_exchanges_key_value_heads_that_are_fewer_than_ranks(
    stack: str, layout: Layout, refusal: str | None
) -> None:
    asked = problem("llama-3-8b", ("h100", 64), stack, seq_len=4096, global_batch=256)
    asked = replace(asked, stack=replace(asked.stack, context="ulysses"))
    _expect(asked, layout, refusal, "layout.cp")


def test_heads_of_recurrences_are_exchanged_for_tokens() -> None:
    model = read(
        {"model_type": "qwen3_5_text", **_HYBRID, "linear_num_value_heads": 8,
         "linear_num_key_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "linear_conv_kernel_dim": 4, "head_dim": 32}
    )  # fmt: skip
    asked = problem(model, ("h100", 64), "megatron", seq_len=4096, global_batch=256)
    _expect(asked, Layout(cp=4, dp_shard=16, zero_stage=1), None)
    _expect(asked, Layout(cp=8, dp_shard=8, zero_stage=1), r"cp\(8\) \* tp\(1\) must divide the 8")


def test_a_stack_may_run_hybrids_without_virtual_stages() -> None:
    model = read(
        {"model_type": "nemotron_h", **_HYBRID, "hybrid_override_pattern": "M-M*",
         "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
         "conv_kernel": 4, "num_hidden_layers": 4, "attention_head_dim": 32}
    )  # fmt: skip
    layout = Layout(
        pp=2, dp_shard=32, schedule="interleaved", virtual_stages=2, zero_stage=1, balanced=False
    )
    for stack, refusal in (("megatron", None), ("megatron-bridge", "1 virtual stages of hybrid")):
        asked = problem(model, ("h100", 64), stack, seq_len=4096, global_batch=256)
        _expect(asked, layout, refusal)


_HYBRID = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}


_BEYOND_THE_SEARCH: list[tuple[str, str, int, dict[str, Any]]] = [
    (
        "llama-3-70b",
        "megatron",
        32,
        {"tp": 8, "sequence_parallel": True, "pp": 4, "schedule": "interleaved",
         "virtual_stages": 20},
    ),
    ("llama-3-70b", "megatron", 64, {"dp_shard": 64, "zero_stage": 2}),
    ("llama-3-70b", "fsdp", 16, {"tp": 4, "dp_shard": 4, "zero_stage": 3, "recompute": "full"}),
    ("llama-3-70b", "deepspeed", 16, {"tp": 16, "zero_stage": 0}),
    ("llama-3-70b", "megatron", 16, {"tp": 8, "dp_shard": 2, "zero_stage": 1}),
    ("llama-3-70b", "torchtitan", 16, {"tp": 8, "dp_shard": 2, "zero_stage": 3}),
]  # fmt: skip
"""What frameworks run and searches leave out: 20 chunks of a layer on each stage of Megatron-Core,
Megatron-FSDP's optim_grads, FSDP2 beside tensor parallelism, AutoTP over two nodes, and tensor
without sequence parallelism in Megatron-LM and torchtitan."""


@pytest.mark.parametrize(("model", "stack", "chips", "knobs"), _BEYOND_THE_SEARCH)
def test_a_stated_layout_may_be_beyond_what_is_searched(
    model: str, stack: str, chips: int, knobs: dict[str, Any]
) -> None:
    asked = problem(model, ("h100", chips), stack, seq_len=4096, global_batch=128)
    layout = Layout(**knobs)
    broken = broken_rules(asked, layout)
    assert {rule.kind for rule in broken} == {"search"}
    assert all("stack." in rule.message(asked, layout) for rule in broken)  # what lifts the limit
    require_legal(lift_search_limits(asked, layout), layout)


@pytest.mark.parametrize(
    ("stack", "knobs"),
    [
        ("fsdp", {"pp": 2, "dp_shard": 8, "zero_stage": 3}),
        ("fms-fsdp", {"tp": 2, "dp_shard": 8, "zero_stage": 3}),
        ("deepspeed", {"tp": 2, "pp": 2, "dp_shard": 4, "zero_stage": 1}),
        ("torchtitan", {"dp_shard": 16, "zero_stage": 1}),
    ],
)
def test_what_a_framework_does_not_have_stays_refused(stack: str, knobs: dict[str, Any]) -> None:
    asked = problem("llama-3-70b", ("h100", 16), stack, seq_len=4096, global_batch=128)
    layout = Layout(**knobs)
    assert lift_search_limits(asked, layout) == asked
    assert "framework" in {rule.kind for rule in broken_rules(asked, layout)}


@pytest.mark.parametrize(
    ("changes", "capacity", "legal"),
    [
        ({"moe_graphs": "full"}, None, False),
        ({"moe_graphs": "full", "static_experts": True}, None, True),
        ({"moe_graphs": "full"}, 1.25, True),
        ({"moe_graphs": "partial"}, None, True),
        ({"moe_graphs": "none"}, None, True),
    ],
)
def test_a_graph_of_a_whole_step_needs_experts_of_fixed_shapes(
    changes: dict[str, Any], capacity: float | None, legal: bool
) -> None:
    asked = problem(
        "mixtral-8x7b", ("h100", 64), "megatron", seq_len=4096, global_batch=256,
        capacity_factor=capacity,
    )  # fmt: skip
    asked = replace(asked, stack=replace(asked.stack, **changes))
    layout = Layout(ep=8, dp_shard=64, zero_stage=1)
    _expect(asked, layout, None if legal else "rank-capacity-factor", "stack.moe_graphs")
    dense = problem("llama-3-8b", ("h100", 64), "megatron", seq_len=4096, global_batch=256)
    _expect(
        replace(dense, stack=replace(dense.stack, **changes)),
        Layout(dp_shard=64, zero_stage=1),
        None,
    )

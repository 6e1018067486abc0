"""Layouts that are written as arguments of Megatron-LM and overrides of Megatron-Bridge, and read
again."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid
from models.layouts.rules import first_broken
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.layout import AXES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.switches import applies, switches_of
from service.formats.launch.formats import FORMATS as LAUNCH_FORMATS
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration, LaunchReading
from service.formats.launch.megatron import reader as megatron_reader
from service.formats.launch.megatron import writer as megatron_writer
from service.formats.launch.megatron.job_arguments import PIPELINE_INSIDE
from service.formats.launch.megatron.model import has_biases
from service.formats.launch.megatron.stages import stage_arguments
from service.formats.launch.megatron_bridge import reader as megatron_bridge_reader
from service.formats.launch.megatron_bridge import writer as megatron_bridge_writer
from service.formats.launch.megatron_bridge.fields import table as bridge_table
from service.formats.megatron.flags import table as megatron_table
from service.formats.megatron.stages import layers_per_chunk, virtual_stages
from service.formats.megatron.values import Arguments
from service.formats.shell.files import LaunchFiles
from service.schemas.architecture import ShapeFields
from service.schemas.layer_list import LayerListFields
from service.schemas.layout import LayoutFields
from service.schemas.workload import WorkloadFields
from tests.launchers.jobs import hybrids, random_jobs
from tests.long import examples, one_in
from tests.service.formats.launch.jobs import job_of, layout_read, problem_of, written
from tests.service.formats.logs.dialects import DEEPSEEK, dump

FORMATS = {
    "megatron": (megatron_writer, megatron_reader, "pretrain_gpt.py"),
    "megatron-bridge": (megatron_bridge_writer, megatron_bridge_reader, "run_recipe.py"),
}
MODELS = {
    "dense": ("llama-3-8b", 16, {}),
    "sparse": ("qwen3-30b-a3b", 16, {"load_balancing": "micro_batch_loss"}),
    "latent": ("deepseek-v3", 16, {"load_balancing": "bias", "optimizer": "adamw_bf16_moments"}),
}
SHARDING: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 3),
    "recompute": ("none", "selective", "full"),
    "offload_activations": (False, True),
    "offload_optimizer": (False, True),
    "ep": (1, 4),
}
PIPELINES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1),
    "schedule": ("1f1b", "interleaved"),
    "virtual_stages": (1, 2, 4),
    "balanced": (True, False),
    "recompute_layers": (0, 1),
    "recompute": ("full",),
}


def command(writer: ModuleType, job: Job, configuration: LaunchConfiguration, program: str) -> str:
    """What somebody would type."""
    per_node = min(8, job.layout.num_devices)
    nodes = job.layout.num_devices // per_node
    words = shlex.join(writer.words(configuration.settings))
    return f"torchrun --nnodes {nodes} --nproc-per-node {per_node} {program} {words}"


def read_again(format_: str, job: Job) -> LaunchReading:
    writer, reader, program = FORMATS[format_]
    text = command(writer, job, writer.write(job), program)
    reading: LaunchReading = reader.read(text)
    return reading


def as_megatron_runs(job: Job) -> Layout:
    """A split is said by its layers, and modules by name."""
    layout = job.layout
    modules = layout.recompute_modules
    if layout.recompute == "selective":
        named = modules or job.problem.stack.selective[0]
        modules = tuple(name for name in named if job.problem.has_module(name))
    is_equal = len(set(job.layers_per_chunk)) == 1
    order = [axis for axis in layout.placement if getattr(layout, axis) > 1]
    is_usual = order == [axis for axis in AXES if getattr(layout, axis) > 1]
    return replace(
        layout,
        schedule="1f1b" if layout.pp == 1 else layout.schedule,
        recompute_modules=modules,
        balanced=not is_equal,
        layers_per_chunk=() if is_equal else job.layers_per_chunk,
        placement=AXES if is_usual else PIPELINE_INSIDE,
    )


def require_same(job: Job, reading: LaunchReading) -> None:
    problem = job.problem
    assert layout_read(reading, problem) == as_megatron_runs(job)
    assert reading.num_devices == job.layout.num_devices
    assert reading.stops == ()
    assert reading.reservations == ()
    stated = WorkloadFields.model_validate(reading.workload).build()
    asked = problem.workload
    if not problem.architecture.is_moe:
        asked = replace(asked, load_balancing="none", routing="natural", capacity_factor=None)
    assert stated == replace(asked, token_budget=None)
    require_same_model(job, reading)
    for switch in switches_of(problem.stack):
        if switch.settings and applies(switch, problem, job.layout):
            assert reading.stack[switch.field] == getattr(problem.stack, switch.field), switch.name


def require_same_model(job: Job, reading: LaunchReading) -> None:
    model = job.problem.architecture
    found = ShapeFields.model_validate(reading.model).build()
    for name in ("num_layers", "hidden_size", "mtp_layers", "is_moe", "tie_word_embeddings"):
        assert getattr(found, name) == getattr(model, name)
    padded = -(-model.vocab_size // job.layout.tp) * job.layout.tp
    assert found.vocab_size == padded
    # The form of requests has no gate of a shared expert, and no biases of dense MLPs.
    assert found.parameters.total == pytest.approx(model.parameters.total, rel=1e-3)
    assert [layer.moe is None for layer in found.layers] == [
        layer.moe is None for layer in model.layers
    ]
    windows = [layer.attention.sliding_window for layer in model.layers]
    assert [layer.attention.sliding_window for layer in found.layers] == windows


@pytest.mark.parametrize("choices", [SHARDING, PIPELINES], ids=["sharding", "pipelines"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("format_", FORMATS)
def test_a_layout_that_is_written_is_read_again(
    format_: str, kind: str, choices: dict[str, tuple[Any, ...]]
) -> None:
    model, num_chips, workload = MODELS[kind]
    problem = problem_of(format_, model, num_chips, **workload)
    writer, reader, program = FORMATS[format_]

    @given(written(problem, writer.write, **choices))
    @settings(max_examples=examples(24))  # of each kind, and of each choice
    def check(made: tuple[Job, LaunchConfiguration]) -> None:
        job, configuration = made
        require_same(job, reader.read(command(writer, job, configuration, program)))

    check()


@pytest.mark.parametrize("format_", FORMATS)
def test_jobs_of_all_kinds_are_read_again(format_: str) -> None:
    @given(st.integers(0, 10**6))
    @settings(max_examples=examples(10))
    def check(seed: int) -> None:
        jobs = random_jobs([format_], str(seed))
        for job, _ in zip(jobs, range(3), strict=False):
            try:
                reading = read_again(format_, job)
            except Inexpressible:
                continue
            require_same(job, reading)

    check()


@pytest.mark.parametrize("format_", one_in(2, FORMATS))
def test_recurrences_and_sparse_attention_are_read_again(format_: str) -> None:
    models = [each for each in hybrids() if each.recurrences or _is_sparse(each)]
    written_models = set()
    for job in islice(random_jobs([format_], "hybrids", models), 260):
        try:
            reading = read_again(format_, job)
        except Inexpressible:
            continue
        written_models.add(job.problem.architecture.name)
        require_same_layers(job, reading)
        layout = LayoutFields.model_validate(reading.layout)
        for axis in ("pp", "dp_shard", "dp_replicate", "cp", "tp", "ep", "virtual_stages"):
            assert getattr(layout, axis) == getattr(job.layout, axis)
        assert reading.stops == ()
        assert reading.reservations == ()
    assert written_models >= {"qwen3_next", "nemotron_h", "deepseek_v32"}


def _is_sparse(model: Architecture) -> bool:
    return any(each.is_sparse for each in model.attentions)


def require_same_layers(job: Job, reading: LaunchReading) -> None:
    """The model that is read has the mixers and networks of the job's, in the same order: those of
    a hybrid as layers of one block each."""
    model = job.problem.architecture
    found = LayerListFields.model_validate(reading.model).build()
    padded = -(-model.vocab_size // job.layout.tp) * job.layout.tp
    if not has_biases(model):  # which Megatron has in every linear layer or in none
        assert found.parameters.total == replace(model, vocab_size=padded).parameters.total
    parts = [part for layer in model.layers for part in (*layer.mixers, layer.feed_forward)]
    of_found = [part for layer in found.layers for part in (*layer.mixers, layer.feed_forward)]
    assert [type(part) for part in of_found if part] == [type(part) for part in parts if part]
    assert found.recurrences[:1] == model.recurrences[:1]
    if _is_sparse(model):
        indexers = [layer.attention.indexer for layer in model.layers]
        assert [layer.attention.indexer for layer in found.layers] == indexers


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("stack", "model", "knobs", "field"),
    [
        ("generic", "llama-3-8b", {"pp": 4, "schedule": "zero_bubble"}, "layout.schedule"),
        ("generic", "llama-3-8b", {"pp": 4, "schedule": "dualpipe"}, "layout.schedule"),
        ("generic", "llama-3-8b", {"pp": 4, "schedule": "afab"}, "layout.schedule"),
        (
            "generic",
            "llama-3-8b",
            {"recompute": "selective", "recompute_modules": ("mlp_act",)},
            "layout.recompute_modules",
        ),
        (
            "generic",
            "mixtral-8x7b",
            {"recompute": "selective", "recompute_modules": ("layernorm", "alternate_mm")},
            "layout.recompute_modules",
        ),
        (
            "generic",
            "llama-3-8b",
            {"tp": 2, "cp": 2, "dp_shard": 4, "zero_stage": 1, "placement": AXES[::-1]},
            "layout.placement",
        ),
        ("generic", "llama-3-8b", {"zero_stage": 3, "reshard": False}, "layout.reshard"),
        ("megatron", "gemma-2-9b", {}, "model.num_norms"),
    ],
)
def test_what_megatron_has_no_words_for_is_named(
    format_: str, stack: str, model: str, knobs: dict[str, Any], field: str
) -> None:
    problem = problem_of(stack, model)
    layout = Layout(**{"dp_shard": 16 // Layout(**knobs).num_devices, "zero_stage": 1, **knobs})
    chunks = layout.pp * layout.virtual_stages
    layers = (problem.architecture.num_layers // chunks,) * chunks
    with pytest.raises(Inexpressible) as refused:
        LAUNCH_FORMATS[format_].write(Job(problem=problem, layout=layout, layers_per_chunk=layers))
    assert refused.value.field == field
    assert f"cannot be said in {format_}" in refused.value.rule


@pytest.mark.parametrize(
    "knobs", [{"recompute": "full"}, {"recompute": "selective", "recompute_modules": ("moe",)}]
)
def test_graphs_without_experts_do_not_go_with_a_repeated_router(knobs: dict[str, Any]) -> None:
    """core/transformer/transformer_config.py stops at them."""
    problem = problem_of("megatron", "mixtral-8x7b")
    captured = replace(problem, stack=replace(problem.stack, moe_graphs="partial"))
    with pytest.raises(Inexpressible) as refused:
        megatron_writer.write(job_of(captured, dp_shard=16, **knobs))
    assert refused.value.field == "stack.moe_graphs"


@pytest.mark.parametrize(
    ("optimizer", "knobs", "field"),
    [
        ("adafactor", {}, "workload.optimizer"),
        ("adamw_8bit", {}, "workload.optimizer"),
        ("adamw_bf16_moments", {"dp_replicate": 16}, "layout.zero_stage"),
    ],
)
def test_an_optimizer_without_words_is_named(
    optimizer: str, knobs: dict[str, Any], field: str
) -> None:
    job = job_of(problem_of("megatron", optimizer=optimizer), **(knobs or {"dp_shard": 16}))
    with pytest.raises(Inexpressible) as refused:
        megatron_writer.write(job)
    assert refused.value.field == field


def test_lion_is_written_and_read_again() -> None:
    job = job_of(problem_of("megatron", optimizer="lion"), dp_shard=16, zero_stage=1)
    assert megatron_writer.write(job).settings["--optimizer"] == "lion"
    require_same(job, read_again("megatron", job))


@pytest.mark.parametrize(
    ("changes", "model", "workload", "knobs", "field"),
    [
        (
            {},
            "llama-3-8b",
            {"optimizer": "lion"},
            {"dp_shard": 16, "zero_stage": 3},
            "layout.zero_stage",
        ),
        (
            {},
            "llama-3-8b",
            {"optimizer": "sgd_momentum"},
            {"dp_shard": 16, "offload_optimizer": True},
            "layout.offload_optimizer",
        ),
        (
            {"attention_kernel": "fused_softmax"},
            "llama-3-8b",
            {},
            {"dp_shard": 16},
            "stack.attention_kernel",
        ),
        (
            {"overlap_pipeline": False},
            "llama-3-8b",
            {},
            {"pp": 2, "dp_shard": 8, "schedule": "interleaved", "virtual_stages": 2},
            "stack.overlap_pipeline",
        ),
        (
            {"overlap_expert": True},
            "mixtral-8x7b",
            {"precision": "fp32"},
            {"dp_shard": 16, "ep": 8},
            "stack.overlap_expert",
        ),
        ({}, "gpt-oss-20b", {}, {"tp": 2, "dp_shard": 8, "etp": 2}, "layout.etp"),
    ],
)
def test_what_megatron_would_stop_at_is_not_written(
    changes: dict[str, Any],
    model: str,
    workload: dict[str, Any],
    knobs: dict[str, Any],
    field: str,
) -> None:
    problem = problem_of("megatron", model, **workload)
    problem = replace(problem, stack=replace(problem.stack, **changes))
    with pytest.raises(Inexpressible) as refused:
        megatron_writer.write(job_of(problem, **knobs))
    assert refused.value.field == field


def test_parameters_in_fp4_have_a_flag_of_their_own() -> None:
    problem = problem_of("megatron", precision="nvfp4")
    cluster = catalogue.cluster("b200", 16)
    stack = replace(problem.stack, keeps_operands=False)
    job = job_of(replace(problem, cluster=cluster, stack=stack), dp_shard=16)
    written_settings = megatron_writer.write(job).settings
    assert written_settings["--fp4-param-gather"] is True
    assert "--fp8-param-gather" not in written_settings
    assert read_again("megatron", job).stack["keeps_operands"] is False


def test_a_module_that_no_layer_has_needs_no_word() -> None:
    problem = problem_of("generic", "mixtral-8x7b")
    modules = ("mlp_act", "moe_act", "mla_up_proj")
    job = job_of(problem, dp_shard=16, recompute="selective", recompute_modules=modules)
    assert megatron_writer.write(job).settings["--recompute-modules"] == ["moe_act"]


@pytest.mark.parametrize(
    ("chip", "knobs", "expected"),
    [
        ("h100", {"tp": 2, "dp_shard": 8}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ("h100", {"cp": 2, "dp_shard": 8}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ("h100", {"dp_shard": 16}, {}),
        ("h100", {"tp": 2, "dp_shard": 8, "zero_stage": 3}, {}),
        ("b200", {"tp": 2, "dp_shard": 8}, {}),
    ],
)
def test_the_environment_follows_from_the_layout(
    chip: str, knobs: dict[str, Any], expected: dict[str, str]
) -> None:
    problem = problem_of("megatron")
    other = replace(problem.cluster, chip=problem_on(chip).cluster.chip)
    job = job_of(replace(problem, cluster=other), **knobs)
    assert dict(megatron_writer.write(job).environment) == expected


def problem_on(chip: str) -> Problem:
    return replace(problem_of("megatron"), cluster=catalogue.cluster(chip, 16))


def test_sparse_models_always_state_the_tensor_parallelism_of_experts() -> None:
    job = job_of(problem_of("megatron", "mixtral-8x7b"), tp=2, dp_shard=8, ep=8)
    assert megatron_writer.write(job).settings["--expert-tensor-parallel-size"] == 1
    dense = job_of(problem_of("megatron"), tp=2, dp_shard=8)
    assert "--expert-tensor-parallel-size" not in megatron_writer.write(dense).settings


def test_micro_batches_that_stages_do_not_divide_pass_in_larger_groups() -> None:
    knobs = {"pp": 4, "tp": 4, "schedule": "interleaved", "virtual_stages": 2}
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    odd = megatron_writer.write(job_of(problem_of("megatron", global_batch=14), **knobs))
    assert odd.settings[group] == 5  # 14 in groups of 4 would leave 2
    even = megatron_writer.write(job_of(problem_of("megatron", global_batch=16), **knobs))
    assert group not in even.settings


@pytest.mark.parametrize("format_", FORMATS)
def test_placeholders_say_what_no_layout_decides(format_: str) -> None:
    job = job_of(
        problem_of(format_, "mixtral-8x7b", load_balancing="micro_batch_loss"), dp_shard=16
    )
    configuration = FORMATS[format_][0].write(job)
    text = " ".join([*configuration.placeholders, *configuration.placeholders.values()])
    for word in ("data", "tokenizer", "learning rate", "checkpoints", "resume", "auxiliary loss"):
        assert word in text
    assert not set(configuration.placeholders) & set(configuration.settings)


def test_names_are_those_of_the_framework() -> None:
    job = job_of(problem_of("megatron", "deepseek-v3"), dp_shard=16, ep=16)
    configuration = megatron_writer.write(job)
    known = megatron_table().fields
    assert {*configuration.settings, *configuration.placeholders} <= known.keys()
    bridge = job_of(problem_of("megatron-bridge", "deepseek-v3"), dp_shard=16, ep=16)
    for name in megatron_bridge_writer.write(bridge).settings:
        assert bridge_table().field(name), name


# -- reading

_WORDS = [
    *megatron_table().fields, *(f"{name}=" for name in bridge_table().fields), "-tp", "8", "-1",
    "x", "None", "[1,2]", "(1,0)", "([0]*3+[1]*5)", "bf16", "$X", "'", '"', "Et|tL", "1e-3", "|",
    "{", "9" * 30, "selective", "full",
]  # fmt: skip


LLAMA = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
    " --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear"
    " --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192"
    " --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 1024 --bf16 "
)


def test_defaults_are_those_of_the_release_and_not_the_newest_tuned_ones() -> None:
    text = LLAMA.replace("--group-query-attention ", "") + (
        "--tensor-model-parallel-size 4 --num-experts 8 --expert-model-parallel-size 4"
    )
    reading = megatron_reader.read(text)
    assert reading.model is not None
    assert reading.layout["etp"] == 4
    assert reading.layout["zero_stage"] == 0
    assert reading.layout["recompute"] == "none"
    assert not reading.layout["sequence_parallel"]
    assert reading.stack["sequence_parallel"] == [True, False]
    assert reading.stack["dispatcher"] == "allgather"
    assert not reading.stack["overlap_data"]
    assert reading.workload["load_balancing"] == "none"  # the weight of the loss is 0
    assert reading.model["num_key_value_heads"] == 64
    assert reading.num_devices is None
    assert "dp_replicate" not in reading.layout
    assert "dp_shard" in reading.layout


def test_the_vocabulary_is_padded() -> None:
    reading = megatron_reader.read(LLAMA + "--tensor-model-parallel-size 8")
    assert reading.model is not None
    assert reading.model["vocab_size"] == 129024
    exact = megatron_reader.read(LLAMA + "--padded-vocab-size 128256")
    assert exact.model is not None
    assert exact.model["vocab_size"] == 128256
    of_tokenizer = LLAMA.replace("--vocab-size 128256", "--tokenizer-type HuggingFaceTokenizer")
    unsaid = megatron_reader.read(of_tokenizer)
    assert unsaid.model is not None
    assert "vocab_size" not in unsaid.model


def test_what_crashes_is_not_made_to_fit() -> None:
    text = LLAMA + "--pipeline-model-parallel-size 3 --num-virtual-stages-per-pipeline-rank 3"
    reading = megatron_reader.read(f"torchrun --nproc-per-node 3 pretrain_gpt.py {text}")
    assert (reading.layout["virtual_stages"], reading.layout["balanced"]) == (3, False)
    problem = problem_of("megatron", "llama-3-70b", 3, seq_len=8192, global_batch=1024)
    layout = layout_read(reading, problem)
    broken = int(first_broken(problem, Layouts.of([layout]))[0])
    assert broken >= 0


@pytest.mark.parametrize(
    ("arguments", "chunks"),
    [
        (
            "--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 17",
            [21, 21, 21, 17],
        ),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 18"
            " --decoder-last-pipeline-num-layers 18",
            [18, 22, 22, 18],
        ),
        (
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 42"
            " --decoder-last-pipeline-num-layers 38 --num-virtual-stages-per-pipeline-rank 2",
            [21, 19, 21, 19],
        ),
        (
            "--pipeline-model-parallel-size 9 --account-for-loss-in-pipeline-split",
            [9] * 8 + [8],
        ),
        (
            "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split"
            " --account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 1",
            [0] + [1] * 80 + [0],
        ),
        (
            "--pipeline-model-parallel-size 4"
            " --pipeline-model-parallel-layout 'Et*19|(t*21,|)*2t*19L'",
            [19, 21, 21, 19],
        ),
    ],
)
def test_uneven_splits_are_read_layer_by_layer(arguments: str, chunks: list[int]) -> None:
    layout = megatron_reader.read(LLAMA + arguments).layout
    assert layout["layers_per_chunk"] == chunks
    assert layout["balanced"]


@pytest.mark.parametrize(
    ("arguments", "setting", "rule"),
    [
        ("--recompute-granularity full", "--recompute-granularity", "full needs"),
        (
            "--recompute-granularity selective --recompute-method uniform",
            "--recompute-granularity",
            "selective goes without",
        ),
        ("--tp-comm-overlap", "--tp-comm-overlap", "needs --sequence-parallel"),
        ("--overlap-param-gather", "--overlap-param-gather", "needs --use-distributed"),
        ("--use-megatron-fsdp", "--use-megatron-fsdp", "fsdp_dtensor"),
        ("--optimizer-cpu-offload", "--optimizer-cpu-offload", "precision-aware"),
        ("--fp16", "--bf16", "excludes --fp16"),
        ("--batch-size 8", "--batch-size", "outdated"),
        ("--cp-comm-type a2a+p2p", "--cp-comm-type", "hierarchical"),
        ("--rotary-base 1e6", "--rotary-base", "must be a whole number"),
        ("--normalization rmsnorm", "--normalization", "must be one of LayerNorm, RMSNorm"),
        ("--lr-warmup-iters 2k", "--lr-warmup-iters", "must be a whole number"),
        ("--profile-ranks 0 all", "--profile-ranks", "must be a whole number"),
        ("--train-iters 10 --train-samples 80", "--train-samples", "goes without --train-iters"),
        ("--train-samples 80 --lr-decay-iters 9", "--lr-decay-iters", "use --lr-decay-samples"),
    ],
)
def test_reasons_to_stop_are_listed(arguments: str, setting: str, rule: str) -> None:
    stops = megatron_reader.read(LLAMA + arguments).stops
    assert setting in [stop.setting for stop in stops]
    assert any(rule in stop.rule for stop in stops)


VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
SPLIT = "--pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("arguments", "setting", "rule", "cure"),
    [
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            "--num-layers-per-virtual-pipeline-stage",
            "must divide 80 layers",
            "1, 2, 4, 5, 10 or 20",
        ),
        (
            f"--pipeline-model-parallel-size 4 {VIRTUAL} 3",
            VIRTUAL,
            "must divide the 20 layers of a stage",
            f"{VIRTUAL} 1, 2, 4, 5, 10 or 20",
        ),
        (
            f"{VIRTUAL} 2 --num-layers-per-virtual-pipeline-stage 3",
            VIRTUAL,
            "does not go with --num-layers",
            "drop it",
        ),
        (f"{VIRTUAL} 2", VIRTUAL, "needs pipeline stages", "of 2 or more"),
        (f"--pipeline-model-parallel-size 4 {SPLIT} Et|t|t|tL", SPLIT, "has 4 layers", "80"),
        (
            f"--pipeline-model-parallel-size 4 {SPLIT} Et*20|t*20|t*40L",
            SPLIT,
            "has 3 chunks",
            "of 4",
        ),
        (f"--pipeline-model-parallel-size 4 {SPLIT} Et|t|x|tL", SPLIT, "has x", ""),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 19",
            "--decoder-first-pipeline-num-layers",
            "leaves 61 layers for 3 other stages",
            "14, 17, 20 or 23",
        ),
        ("--pipeline-model-parallel-size 0", "--pipeline-model-parallel-size", "at least 1", "1"),
        ("--micro-batch-size -2", "--micro-batch-size", "at least 1", "1"),
        (
            "--recompute-granularity selective --recompute-modules core_attn puzzle",
            "--recompute-modules",
            "must be among",
            "",
        ),
        (
            "--num-experts 8 --moe-router-topk 2 --moe-layer-freq ([0]*3+[1]*58)",
            "--moe-layer-freq",
            "for each of the 80 layers",
            "([0]*3+[1]*77)",
        ),
    ],
)
def test_what_parses_and_crashes_is_a_stop_that_hides_the_layout(
    arguments: str, setting: str, rule: str, cure: str
) -> None:
    (stop,) = (each for each in megatron_reader.read(LLAMA + arguments).stops if each.hides_layout)
    assert stop.setting == setting
    assert rule in stop.rule
    assert cure in stop.cure


def test_an_environment_that_stops_megatron_fsdp_is_found() -> None:
    text = f"{LLAMA} --use-megatron-fsdp --ckpt-format fsdp_dtensor"
    assert megatron_reader.read(text).stops == ()
    stops = megatron_reader.read(f"CUDA_DEVICE_MAX_CONNECTIONS=1 {text}").stops
    assert [stop.setting for stop in stops] == ["--use-megatron-fsdp"]


@pytest.mark.parametrize(
    ("arguments", "value", "rule"),
    [
        (
            "--tensor-model-parallel-size eight",
            "--tensor-model-parallel-size eight",
            "whole number",
        ),
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size", "needs a value"),
        ("--recompute-granularity some", "--recompute-granularity some", "one of full, selective"),
        ("--moe-layer-freq __import__('os')", "--moe-layer-freq", "a list such as"),
        ("--pipeline-model-parallel-size $PP", "--pipeline-model-parallel-size $PP", "not defined"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag(arguments: str, value: str, rule: str) -> None:
    with pytest.raises(Invalid) as refused:
        megatron_reader.read(LLAMA + arguments)
    assert refused.value.field == "launch.arguments"
    assert str(refused.value.value).startswith(value)
    assert rule in refused.value.rule


def test_what_is_not_read_is_listed_and_what_does_not_matter_is_ignored() -> None:
    reading = megatron_reader.read(
        LLAMA + "--lr 3e-4 --data-path $DATA --tensorboard-dir logs --hidden-dropout 0.0"
        " --attention-dropout 0.0 --fp32-residual-connection --tensor-model-paralel-size 4 --foo"
    )
    assert [one.setting for one in reading.reservations] == ["--fp32-residual-connection", "--foo"]
    (misspelt,) = reading.stops
    assert (misspelt.setting, misspelt.value) == ("--tensor-model-paralel-size", "4")
    assert misspelt.meant == "--tensor-model-parallel-size"
    assert "--data-path $DATA" in reading.ignored
    assert "--lr 3e-4" in reading.ignored


def test_an_older_release_has_its_own_defaults() -> None:
    assert megatron_reader.read(LLAMA, "0.16.1").version == "0.16.0"
    assert megatron_reader.read(LLAMA, "core_v0.9.0").stack["attention_kernel"] == "fused_softmax"
    assert megatron_reader.read(LLAMA).stack["attention_kernel"] == "auto"
    with pytest.raises(Invalid, match=r"launch\.version"):
        megatron_reader.read(LLAMA, "newest")


def test_a_dump_says_the_same_as_flags() -> None:
    reading = megatron_reader.read(dump(**DEEPSEEK))
    assert reading.model is not None
    assert reading.model["moe"]["first_k_dense"] == 3
    assert reading.num_devices == 1024
    assert (reading.layout["pp"], reading.layout["virtual_stages"]) == (8, 4)


def test_multi_token_prediction_on_a_stage_of_its_own_is_listed() -> None:
    arguments = (
        "--mtp-num-layers 1 --pipeline-model-parallel-size 4"
        " --pipeline-model-parallel-layout Et*40|t*40|m|L"
    )
    reading = megatron_reader.read(LLAMA + arguments)
    assert reading.layout["balanced"]
    assert "layers_per_chunk" not in reading.layout
    (unread,) = reading.reservations
    assert unread.setting == "--pipeline-model-parallel-layout Et*40|t*40|m|L"
    assert unread.reason.startswith("multi-token")


@pytest.mark.parametrize(
    ("layout", "pp", "chunks"),
    [
        # With a layer of the last stage in its place, every stage does as much as before.
        ("Et*6|(tt|)*37m|L", 8, [6, *[2] * 6, 1, *[2] * 30, 1, 0]),
        ("Et*10|t*30|t*20|t*20mL", 4, [10, 30, 20, 20]),
    ],
)
def test_multi_token_prediction_may_stand_in_front_of_the_loss(
    layout: str, pp: int, chunks: list[int]
) -> None:
    arguments = (
        f"--mtp-num-layers 1 --pipeline-model-parallel-size {pp}"
        f" --pipeline-model-parallel-layout {layout}"
    )
    reading = megatron_reader.read(LLAMA + arguments)
    assert reading.layout["layers_per_chunk"] == chunks
    assert bool(reading.reservations) == ("m|" in layout)


@given(st.integers(2, 8), st.data())
def test_any_split_over_stages_is_read_as_it_is_written(pp: int, data: st.DataObject) -> None:
    virtual = data.draw(st.integers(1, 3))
    inner = st.lists(st.integers(1, 6), min_size=pp * virtual - 2, max_size=pp * virtual - 2)
    ends = st.integers(0 if virtual > 1 else 1, 6)
    layers = [data.draw(ends), *data.draw(inner), data.draw(ends)]
    arguments = {
        "num_layers": sum(layers),
        **stage_arguments(layers, pp, virtual, data.draw(st.integers(0, 2))),
    }
    values = {name: str(value) for name, value in arguments.items()}
    typed = Arguments(values, {})
    assert virtual_stages(typed, pp) == virtual
    found = layers_per_chunk(typed, pp, virtual) or [layers[0]] * (pp * virtual)
    assert found == layers


def test_yaml_says_the_same_as_flags() -> None:
    flat = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "bf16": True}
    lines = [f"{name}: {str(value).lower()}" for name, value in flat.items()]
    text = "\n".join([*lines, "micro_batch_size: 2", "model_parallel:",
                      "  tensor_model_parallel_size: 4", "  sequence_parallel: true"])  # fmt: skip
    reading = megatron_reader.read(text)
    assert reading.layout["tp"] == 4
    assert reading.layout["sequence_parallel"]
    assert reading.layout["micro_batch"] == 2
    assert reading.num_micro_batches == 1


@given(st.lists(st.sampled_from(_WORDS), max_size=8))
def test_any_arguments_are_read_or_refused(words: list[str]) -> None:
    with suppress(Invalid):
        megatron_reader.read(" ".join(words))
    with suppress(Invalid):
        megatron_bridge_reader.read(" ".join(words))


_EXPERTS = "--micro-batch-size 1 --num-experts 8 --moe-expert-capacity-factor"


@pytest.mark.parametrize(
    ("text", "factor", "unread", "stops"),
    [
        (f"{_EXPERTS} 1.5 --moe-pad-expert-input-to-capacity", 1.5, 0, 0),
        (f"{_EXPERTS} 1.5", 1.5, 1, 0),
        (f"{_EXPERTS} -1", None, 0, 0),
        ("--micro-batch-size 1 --num-experts 8 --moe-pad-expert-input-to-capacity", None, 0, 1),
        (f"{_EXPERTS} 1.5 --moe-pad-expert-input-to-capacity --moe-token-dispatcher-type flex",
         1.5, 0, 1),
        (f"{_EXPERTS} 1 --moe-pad-expert-input-to-capacity"
         " --moe-router-load-balancing-type sinkhorn", 1, 0, 1),
    ],
)  # fmt: skip
def test_the_capacity_of_experts_is_read(
    text: str, factor: float | None, unread: int, stops: int
) -> None:
    reading = megatron_reader.read(text)
    assert reading.workload.get("capacity_factor") == factor
    assert (len(reading.reservations), len(reading.stops)) == (unread, stops)


def test_a_capacity_is_a_factor() -> None:
    for wrong in ("0", "1000"):
        with pytest.raises(Invalid, match="--moe-expert-capacity-factor"):
            megatron_reader.read(f"{_EXPERTS} {wrong}")


def test_tokens_of_experts_with_a_capacity_are_dispatched_by_what_pads_them() -> None:
    problem = problem_of("megatron", "mixtral-8x7b", capacity_factor=1.0)
    problem = replace(problem, stack=replace(problem.stack, dispatcher="deduplicated"))
    written_ = megatron_writer.write(job_of(problem, dp_shard=16, ep=8, zero_stage=1))
    assert written_.settings["--moe-flex-dispatcher-backend"] == "hybridep"
    assert any("HybridEP" in note for note in written_.notes)


def test_flags_of_forks_that_are_known_to_matter_are_reserved() -> None:
    reading = megatron_reader.read(f"{LLAMA} --lora-rank 16 --wandb-of-mine x")
    (adapters,) = reading.reservations
    assert (adapters.setting, adapters.answered_by) == ("--lora-rank 16", "workload.lora")
    assert "--wandb-of-mine x" in reading.ignored


def test_more_layers_than_any_model_has_are_refused_at_once() -> None:
    with pytest.raises(Invalid, match="at most 1024"):
        megatron_reader.read(f"{LLAMA} --num-layers 999999999 --moe-layer-freq 2")


def test_a_choice_of_numbers_takes_its_numbers_alone() -> None:
    flash = f"{LLAMA} --attention-backend flash"
    reading = megatron_reader.read(f"{flash} --flash-attention-version 3")
    assert reading.settings["--flash-attention-version"] == 3
    with pytest.raises(Invalid, match="must be one of 2, 3, 4"):
        megatron_reader.read(f"{flash} --flash-attention-version 7")


def test_a_required_flag_that_is_misspelt_is_read_as_what_it_means_and_stops() -> None:
    words = "--num-layer 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096"
    others = "--mico-batch-size 2 --vocab-size 32000"
    reading = megatron_reader.read(f"{words} {others}")
    assert reading.model["num_layers"] == 32
    assert reading.layout["micro_batch"] == 2
    stops = {stop.setting: stop.meant for stop in reading.stops}
    assert stops == {"--num-layer": "--num-layers", "--mico-batch-size": "--micro-batch-size"}
    with pytest.raises(Invalid, match="must be a whole number") as refused:
        megatron_reader.read(f"{words.replace('32', 'x', 1)} {others}")
    assert refused.value.value == "--num-layers x"


def test_experts_of_a_model_that_is_said_beside_the_flags_are_split_as_these_say() -> None:
    flags = "--expert-model-parallel-size 4 --tensor-model-parallel-size 2 --micro-batch-size 1"
    reading = megatron_reader.read(f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags}")
    assert (reading.model, reading.stops) == (None, ())
    assert (reading.layout["ep"], reading.layout["etp"]) == (4, 2)
    dense = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 512"
    (stop,) = megatron_reader.read(f"{flags} {dense}").stops
    assert stop.setting == "--expert-model-parallel-size"


def test_flags_of_forks_that_say_the_same_are_read() -> None:
    shape = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1"
    kernels = "--use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb"
    reading = megatron_reader.read(f"{shape} {kernels} --pad-vocab-size-to 250880")
    assert reading.model["vocab_size"] == 250880
    assert reading.reservations == ()


def test_megatron_deepspeed_is_its_own_stack_with_its_own_rules() -> None:
    """It splits 70 layers over 12 stages, and recomputes by flags that Megatron-Core lacks."""
    shape = "--num-layers 70 --hidden-size 64 --num-attention-heads 4 --vocab-size 512"
    launcher = "torchrun --nnodes 12 --nproc-per-node 8 pretrain_gpt.py"
    degrees = (
        "--micro-batch-size 1 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 12"
    )
    flags = f"{shape} {degrees} --num-expert 8 --checkpoint-activations"
    reading = megatron_reader.read(f"{launcher} {flags} --deepspeed --zero-stage 1")
    assert reading.stops == ()
    assert reading.stack["name"] == "megatron-deepspeed"
    assert (reading.layout["balanced"], reading.layout["recompute"]) == (True, "full")
    assert "--num-expert 8" in [one.setting for one in reading.reservations]
    assert reading.layout["etp"] == 1
    unknown = megatron_reader.read(f"{launcher} {degrees} --deepspeed")
    assert not unknown.layout["balanced"]
    assert any("Megatron-DeepSpeed" in sentence for sentence in reading.assumed)
    experts = (
        f"{launcher} {shape} {degrees} --num-experts 4 --use-flash-attn --deepspeed --zero-stage 1"
    )
    sparse = megatron_reader.read(experts)
    assert (sparse.layout["etp"], sparse.stack["attention_kernel"]) == (1, "flash2")
    plain = f"{launcher} {shape} --micro-batch-size 1 --recompute-activations --deepspeed"
    sharded = megatron_reader.read(f"{plain} --zero-stage 3").stack
    assert sharded["zero_stages"] == [0, 1, 3]
    assert sharded["recompute"] == ["none", "full", "selective"]
    of_core = megatron_reader.read(f"{launcher} {flags}").stops
    assert {"--checkpoint-activations", "--num-expert"} <= {stop.setting for stop in of_core}


def test_files_that_flags_name_are_read_where_they_were_sent() -> None:
    command = "torchrun --nproc-per-node 8 pretrain_gpt.py"
    shape = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 512"
    fork = f"{command} {shape} --micro-batch-size 1 --deepspeed --deepspeed_config=ds.json"
    (unsent,) = megatron_reader.read(fork).reservations
    assert "ds.json was not sent" in unsent.reason
    document = """{"train_batch_size": 8, "bf16": {"enabled": true}, "wall_clock_breakdown": false,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}"""
    reading = megatron_reader.read(fork, files=LaunchFiles(texts={"ds.json": document}))
    assert reading.layout["zero_stage"] == 2
    (unread,) = reading.reservations
    assert unread.setting == "zero_optimization.offload_optimizer.device = cpu"

    yaml = f"{command} --yaml-cfg conf.yaml"
    with pytest.raises(Invalid, match="conf.yaml.*not sent"):
        megatron_reader.read(yaml)
    settings = """language_model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4}
model_parallel: {tensor_model_parallel_size: 2}
micro_batch_size: 2
vocab_size: 512
"""
    reading = megatron_reader.read(yaml, files=LaunchFiles(texts={"conf.yaml": settings}))
    assert (reading.num_devices, reading.layout["tp"], reading.layout["micro_batch"]) == (8, 2, 2)
    assert reading.model is not None
    assert reading.model["num_layers"] == 2


def test_tensor_parallelism_before_blackwell_has_one_hardware_queue() -> None:
    text = f"{LLAMA} --tensor-model-parallel-size 2"
    (stop,) = megatron_reader.read(f"CUDA_DEVICE_MAX_CONNECTIONS=8 {text}").stops
    assert (stop.setting, stop.value, stop.not_on) == (
        "CUDA_DEVICE_MAX_CONNECTIONS", "8", ("blackwell", "rubin")
    )  # fmt: skip
    for start in ("", "CUDA_DEVICE_MAX_CONNECTIONS=1 ", "CUDA_DEVICE_MAX_CONNECTIONS=$N "):
        assert megatron_reader.read(f"{start}{text}").stops == ()
    assert megatron_reader.read(f"CUDA_DEVICE_MAX_CONNECTIONS=8 {LLAMA}").stops == ()


@pytest.mark.parametrize(
    ("batch", "group", "refusal", "reserved"),
    [
        (16, None, None, False),
        (16, 4, None, False),
        (16, 2, "must be from the 4 stages of the pipeline to the 16 micro-batches", False),
        (16, 1000, "must be from the 4 stages of the pipeline to the 16 micro-batches", False),
        (14, None, "of 4 leaves 2 of the 14 micro-batches of a rank in the last group", False),
        (14, 6, "of 6 leaves 2 of the 14 micro-batches of a rank in the last group", False),
        (14, 5, None, False),
        (16, 16, None, True),
    ],
)
def test_groups_of_micro_batches_are_those_that_the_schedule_takes(
    batch: int, group: int | None, refusal: str | None, reserved: bool
) -> None:
    flag = "--microbatch-group-size-per-virtual-pipeline-stage"
    given = "" if group is None else f"{flag} {group}"
    reading = megatron_reader.read(
        f"torchrun --nproc-per-node 4 pretrain_gpt.py {LLAMA} --global-batch-size {batch}"
        f" --pipeline-model-parallel-size 4 {VIRTUAL} 2 {given}"
    )
    rules = [stop.rule for stop in reading.stops if stop.setting == flag]
    assert len(rules) == (refusal is not None)
    assert all((refusal or "") in rule for rule in rules)
    settings = [one.setting for one in reading.reservations]
    assert settings == ([f"{flag} {group}"] if reserved else [])
    assert flag not in " ".join(reading.ignored)


def test_gradients_of_fp16_have_the_bytes_of_parameters_unless_told_otherwise() -> None:
    """Only --bf16 accumulates them in fp32 by itself."""
    fp16 = LLAMA.replace("--bf16", "--fp16")
    wide = "--accumulate-allreduce-grads-in-fp32"
    texts = (fp16, f"{fp16} {wide}", LLAMA, f"{LLAMA} {wide}", f"{LLAMA} --grad-reduce-in-bf16")
    read_bytes = [megatron_reader.read(text).stack["gradient_bytes"] for text in texts]
    assert read_bytes == [2, 4, 4, 4, 2]
    for bytes_ in (4, 2):
        problem = problem_of("megatron", precision="fp16")
        problem = replace(problem, stack=replace(problem.stack, gradient_bytes=bytes_))
        configuration = megatron_writer.write(job_of(problem, dp_shard=16, zero_stage=1))
        assert (wide in configuration.settings) == (bytes_ == 4)


def test_a_value_of_no_account_that_another_fork_may_take_is_no_stop() -> None:
    """Only with flags of Megatron-Core alone is it known whose parser reads the value."""
    value = "--position-embedding-type alibi --train-iters $ITERATIONS --exit-signal SIGTERM"
    (stop,) = megatron_reader.read(f"{LLAMA} {value}").stops
    assert (stop.setting, stop.value) == ("--position-embedding-type", "alibi")
    reading = megatron_reader.read(f"{LLAMA} {value} --embed-layernorm")
    assert reading.stops == ()
    assert "--position-embedding-type alibi" in [one.setting for one in reading.reservations]


def test_dropout_is_predicted_as_0_and_its_default_is_told() -> None:
    unset = megatron_reader.read(LLAMA)
    assert [sentence.partition(" is ")[0] for sentence in unset.assumed] == [
        "--attention-dropout = 0.0",
        "--hidden-dropout = 0.0",
    ]
    off = megatron_reader.read(f"{LLAMA} --attention-dropout 0 --hidden-dropout 0.0")
    assert (off.assumed, off.reservations) == ((), ())
    on = megatron_reader.read(f"{LLAMA} --attention-dropout 0.1 --hidden-dropout 0.1")
    assert [one.setting for one in on.reservations] == [
        "--attention-dropout 0.1",
        "--hidden-dropout 0.1",
    ]


def test_fields_of_a_request_have_the_flags_that_say_them() -> None:
    reading = megatron_reader.read(f"{LLAMA} --fp8-format e4m3 --fp8-recipe mxfp8")
    assert reading.settings_of_fields["model.num_key_value_heads"] == "--num-query-groups"
    assert reading.settings_of_fields["workload.precision"] == "--fp8-recipe"

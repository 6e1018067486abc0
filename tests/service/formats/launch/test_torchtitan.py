from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import Inexpressible, Job, LaunchReading
from service.formats.launch.rendering import as_shell
from service.formats.launch.torchtitan import reader as torchtitan_reader
from service.formats.launch.torchtitan import writer as torchtitan_writer
from service.formats.launch.torchtitan.pipeline import generated_split, split_settings
from service.formats.settings.field_table import field_table
from service.schemas.architecture import ShapeFields
from service.schemas.layout import LayoutFields
from service.schemas.stack import StackFields
from service.schemas.workload import WorkloadFields
from tests.long import examples
from tests.service.formats.launch.jobs import job_of, layout_read, problem_of, written

DENSE = problem_of("torchtitan")
SPARSE = problem_of("torchtitan", "qwen3-30b-a3b")
CHOICES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 2, 3),
    "reshard": (True, False),
    "recompute": ("none", "selective", "full"),
    "offload_optimizer": (False, True),
    "ep": (1, 4),
    "micro_batch": (1, 4),
}
PIPELINES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 3),
    "schedule": ("1f1b", "afab", "interleaved"),
    "virtual_stages": (1, 2, 3, 4),
    "balanced": (True, False),
    "micro_batch": (1, 2),
}


def read(text: str, version: str | None = None) -> LaunchReading:
    return torchtitan_reader.read(text, version)


def as_torchtitan_runs(job: Job) -> Layout:
    """ZeRO 2 is FSDP that keeps parameters after forward, and a split is said by its layers."""
    layout = job.layout
    if layout.zero_stage == 2 or (layout.zero_stage == 3 and not layout.reshard):
        layout = replace(layout, zero_stage=3, reshard=False)
    elif layout.zero_stage == 0:
        layout = replace(layout, reshard=True)
    is_equal = len(set(job.layers_per_chunk)) == 1
    layers = () if is_equal else job.layers_per_chunk
    return replace(layout, balanced=not is_equal, layers_per_chunk=layers)


@pytest.mark.parametrize("choices", [CHOICES, PIPELINES], ids=["sharding", "pipelines"])
@pytest.mark.parametrize("problem", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_a_layout_that_is_written_is_read_again(problem: Problem, choices: Any) -> None:
    @given(written(problem, torchtitan_writer.write, **choices))
    @settings(max_examples=examples(24))
    def check(made: Any) -> None:
        job, configuration = made
        reading = read(shlex.join(torchtitan_writer.words(configuration.settings)))
        assert layout_read(reading, problem) == as_torchtitan_runs(job)
        assert reading.num_devices == job.layout.num_devices
        assert reading.num_micro_batches == job.num_micro_batches
        assert reading.workload["global_batch"] == problem.workload.global_batch
        assert reading.workload["seq_len"] == problem.workload.seq_len
        assert reading.workload["precision"] == "bf16"
        assert reading.model == {"name": problem.architecture.name}
        assert reading.stack["launch"] == "compiled"
        assert reading.reservations == ()
        assert reading.ignored == ("checkpoint.enable = true",)
        assert reading.stops == ()

    check()


def test_a_plain_layout_is_written_as_flags() -> None:
    job = job_of(DENSE, dp_shard=16, zero_stage=3, micro_batch=2)
    configuration = torchtitan_writer.write(job)
    assert configuration.settings["module"] == "llama3"
    assert configuration.settings["config"] == "llama3_8b"
    words = torchtitan_writer.words(configuration.settings)
    assert words[-1] == "activation-checkpoint:selective"
    text = shlex.join(words)
    assert "--training.local_batch_size 2" in text
    assert "--parallelism.fsdp_reshard_after_forward always" in text
    assert "--training.no_enable_cpu_offload" in text
    assert configuration.slurm["nodes"] == 2


def test_degrees_that_a_config_function_sets_are_stated() -> None:
    problem = problem_of("torchtitan", "llama-3-70b", 16)
    settings = torchtitan_writer.write(job_of(problem, dp_shard=16, zero_stage=3)).settings
    assert settings["config"] == "llama3_70b"
    assert settings["parallelism.tensor_parallel_degree"] == 1


@pytest.mark.parametrize(
    ("knobs", "policy"),
    [
        ({"dp_shard": 16, "zero_stage": 2, "reshard": True}, "never"),
        ({"dp_shard": 16, "zero_stage": 3, "reshard": False}, "never"),
        ({"dp_shard": 16, "zero_stage": 3, "reshard": True}, "always"),
        ({"dp_replicate": 16, "zero_stage": 0}, None),
    ],
)
def test_what_zero_stages_are_in_fsdp(knobs: dict[str, Any], policy: str | None) -> None:
    settings = torchtitan_writer.write(job_of(DENSE, **knobs)).settings
    assert settings.get("parallelism.fsdp_reshard_after_forward") == policy


def test_zero_2_with_several_micro_batches_has_a_note() -> None:
    several = torchtitan_writer.write(job_of(DENSE, dp_shard=16, zero_stage=2, micro_batch=1))
    one = torchtitan_writer.write(job_of(DENSE, dp_shard=16, zero_stage=2, micro_batch=4))
    assert any("gathered once for each of the 4 micro-batches" in note for note in several.notes)
    assert not any("gathered once" in note for note in one.notes)


@pytest.mark.parametrize(
    ("knobs", "field", "cure"),
    [
        ({"cp": 2, "dp_replicate": 8, "zero_stage": 0}, "layout.zero_stage", "zero_stage 3"),
        ({"dp_shard": 16, "zero_stage": 1}, "layout.zero_stage", "zero_stage 3 or 2"),
        (
            {"dp_shard": 16, "zero_stage": 3, "schedule": "afab"},
            "layout.schedule",
            "ask with 1f1b",
        ),
        (
            {"dp_shard": 16, "zero_stage": 3, "recompute_modules": ("core_attn",)},
            "layout.recompute_modules",
            "leave recompute_modules out",
        ),
        (
            {"dp_shard": 16, "zero_stage": 3, "offload_activations": True},
            "layout.offload_activations",
            "ask with false",
        ),
        (
            {"dp_shard": 8, "tp": 2, "placement": ("dp_shard", "tp", "cp", "dp_replicate", "pp")},
            "layout.placement",
            "innermost first",
        ),
    ],
)
def test_a_knob_that_no_flag_says_is_refused_with_a_cure(
    knobs: dict[str, Any], field: str, cure: str
) -> None:
    if "recompute_modules" in knobs:
        knobs = {**knobs, "recompute": "selective"}
    with pytest.raises(Inexpressible, match=cure) as raised:
        torchtitan_writer.write(job_of(DENSE, **knobs))
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"precision": "int8"}, "workload.precision"),
        ({"optimizer": "adafactor"}, "workload.optimizer"),
    ],
)
def test_a_recipe_that_no_flag_says_is_refused(workload: dict[str, Any], field: str) -> None:
    problem = problem_of("torchtitan", **workload)
    with pytest.raises(Inexpressible) as raised:
        torchtitan_writer.write(job_of(problem, dp_shard=16, zero_stage=3))
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("workload", "config"),
    [({"precision": "mxfp8"}, "llama3_8b_mxfp8"), ({"precision": "fp32"}, "llama3_8b")],
)
def test_the_precision_picks_the_config_function(workload: dict[str, Any], config: str) -> None:
    b200 = catalogue.cluster("b200", 16)
    problem = replace(DENSE, cluster=b200, workload=replace(DENSE.workload, **workload))
    job = job_of(problem, dp_shard=16, zero_stage=3)
    assert torchtitan_writer.write(job).settings["config"] == config


def test_a_model_that_no_config_function_trains_has_placeholders() -> None:
    problem = problem_of("torchtitan", "mixtral-8x7b")
    configuration = torchtitan_writer.write(job_of(problem, dp_shard=16, zero_stage=3))
    assert "config" not in configuration.settings
    assert "mixtral-8x7b" in configuration.placeholders["config"]
    assert any("mixtral-8x7b" in note for note in configuration.notes)


@pytest.mark.parametrize("asked", [{}, {"launch": "eager"}, {"version": "0.2.0"}])
def test_the_selective_policy_is_that_of_the_kernels_and_of_the_release(
    asked: dict[str, str],
) -> None:
    """All compute the products of experts again, which compiled code of 0.2.2 does not."""
    stack = StackFields.model_validate({"name": "torchtitan", **asked}).build(SPARSE.stack)
    job = job_of(replace(SPARSE, stack=stack), dp_shard=16, ep=4, zero_stage=3)
    assert "grouped_mm" in job.layout.recompute_modules
    assert torchtitan_writer.write(job).settings["activation_checkpoint"] == "selective"
    older = {"name": "torchtitan", "version": "0.2.2"}
    saving = replace(SPARSE, stack=StackFields.model_validate(older).build(SPARSE.stack))
    with pytest.raises(Inexpressible, match="leave recompute_modules out"):
        torchtitan_writer.write(replace(job, problem=saving))


def test_graphs_go_with_neither_pipelines_nor_experts() -> None:
    graph = replace(DENSE, stack=replace(DENSE.stack, launch="graph"))
    plain = torchtitan_writer.write(job_of(graph, dp_shard=16, zero_stage=3)).settings
    assert plain["training.disable_cuda_graphs"] is False
    with pytest.raises(Inexpressible, match="neither pp nor ep"):
        torchtitan_writer.write(job_of(graph, pp=4, dp_shard=4, zero_stage=3))


# -- splits of a pipeline


@pytest.mark.parametrize(
    ("layers", "settings"),
    [
        ((7, 9, 9, 7), {"first": 1, "last": 0}),
        ((8, 8, 8, 8), {"first": 0, "last": 0}),
        ((8, 9, 8, 7), {"first": 1, "last": 1}),
    ],
)
def test_splits_that_two_weights_say(layers: tuple[int, ...], settings: dict[str, int]) -> None:
    written_ = split_settings(layers, has_chunks=False)
    if "parallelism.module_fqns_per_model_part" in written_:
        pytest.fail(f"{layers} is written by its modules")
    first, last = (value for name, value in written_.items() if "less_layers" in name)
    assert generated_split(sum(layers), len(layers), first, last) == layers


def test_other_splits_are_said_by_the_names_of_modules() -> None:
    parts = split_settings((3, 1, 4), has_chunks=False)["parallelism.module_fqns_per_model_part"]
    assert parts[0] == ["tok_embeddings", "layers.0", "layers.1", "layers.2"]
    assert parts[1] == ["layers.3"]
    assert parts[2][-2:] == ["norm", "lm_head"]


def test_the_split_that_nobody_set_gives_the_ends_less() -> None:
    reading = read(
        "--module llama3 --config llama3_8b --parallelism.pipeline_parallel_degree 4"
        " --parallelism.data_parallel_shard_degree 2 --training.local_batch_size 8"
        " --training.disable_cuda_graphs"
    )
    assert reading.layout["layers_per_chunk"] == [8, 9, 8, 7]
    assert reading.layout["schedule"] == "1f1b"


# -- reading


def test_defaults_are_those_of_the_config_function_and_the_release() -> None:
    reading = read("--module llama3 --config llama3_8b")
    assert reading.num_devices is None
    assert "dp_shard" not in reading.layout
    assert "global_batch" not in reading.workload
    assert reading.workload["seq_len"] == 8192
    assert reading.layout["micro_batch"] == 1
    assert reading.layout["recompute"] == "selective"
    assert (reading.layout["zero_stage"], reading.layout["reshard"]) == (3, True)
    assert reading.stack["launch"] == "graph"
    assert reading.stack["fused"] is False
    assert reading.stack["loss_chunks"] == 8


def test_the_rest_of_the_devices_is_sharded() -> None:
    reading = read(
        "torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train --module llama3"
        " --config llama3_8b --parallelism.tensor-parallel-degree=4"
    )
    assert reading.num_devices == 32
    assert reading.layout["dp_shard"] == 8
    assert reading.layout["sequence_parallel"] is True
    assert reading.workload["global_batch"] == 8


def test_a_script_that_names_the_config_in_the_environment() -> None:
    reading = read("NGPU=8 MODULE=qwen3 CONFIG=qwen3_14b ./run_train.sh --training.steps 3")
    assert reading.model == {"name": "qwen3-14b"}
    assert reading.num_devices == 8
    assert reading.layout["recompute"] == "full"
    assert reading.ignored == ("training.steps = 3",)


def test_deepseek_v3_is_read_without_its_prediction_of_several_tokens() -> None:
    reading = read("--module deepseek_v3 --config deepseek_v3_671b")
    assert reading.model is not None
    assert (reading.model["name"], reading.model["mtp_layers"]) == ("deepseek-v3", 0)
    assert ShapeFields.model_validate(reading.model).build().num_layers == 61


def test_torchtitan_stops_at_flags_that_it_does_not_have() -> None:
    reading = read(
        "--module llama3 --config llama3_8b --parallelism.tensor_paralel_degree 4 --foo.bar"
        " --optimizer.param_groups.0.optimizer_kwargs.lr 1e-4 --compile.backend aot_eager"
    )
    misspelt, unknown = reading.stops
    assert (misspelt.setting, misspelt.value) == ("--parallelism.tensor_paralel_degree", "4")
    assert "did you mean --parallelism.tensor_parallel_degree?" in misspelt.rule
    assert unknown.setting == "--foo.bar"
    assert tuple(each.text for each in reading.reservations) == (
        "compile.backend = aot_eager (kernels of another compiler are not described)",
    )
    assert reading.ignored == ("optimizer.param_groups.0.optimizer_kwargs.lr = 1e-4",)


@pytest.mark.parametrize(
    "text",
    [
        "--module mine --config mine_7b --my.flag 1",
        "--module llama3 --config mine_7b --my.flag 1",
        "--module llama3 --config llama3_8b --dataloader.load_dataset_kwargs.split train",
    ],
)
def test_flags_that_a_config_function_may_bring_are_listed(text: str) -> None:
    reading = read(text)
    assert reading.stops == ()
    assert any("has no such setting" in each.reason for each in reading.reservations)


def test_flags_of_another_release_are_listed() -> None:
    assert read("--module llama3 --config llama3_8b --my.flag 1", "0.2.1").stops == ()


def test_flags_of_two_releases_are_not_mixed() -> None:
    reading = read(
        "--module llama3 --config llama3_8b --activation_checkpoint.mode full --model.flavor 8B"
    )
    assert reading.model == {"name": "llama-3-8b"}
    assert reading.layout["recompute"] == "full"
    mode, flavor = reading.stops
    assert (mode.setting, mode.cure) == (
        "--activation_checkpoint.mode",
        "activation-checkpoint:full",
    )
    assert "before 0.3.0" in mode.rule
    assert "--module is one of 0.3.0" in mode.rule
    assert flavor.setting == "--model.flavor"


FILE = """cat > 8b.toml <<EOF
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 4096
local_batch_size = 2
EOF
"""


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file 8b.toml",
        "CONFIG_FILE=8b.toml NGPU=8 ./run_train.sh",
        "export CONFIG_FILE=8b.toml NGPU=8\n./run_train.sh",
    ],
)
def test_a_file_of_settings_must_be_sent(command: str) -> None:
    with pytest.raises(Invalid, match="not sent: send the text of that file") as caught:
        read(command)
    assert "8b.toml" in str(caught.value.value)
    reading = read(f"{FILE}{command} --training.local_batch_size 4")
    assert reading.model == {"name": "llama-3-8b"}
    assert reading.workload["seq_len"] == 4096
    assert reading.layout["micro_batch"] == 4
    assert reading.num_devices == 8


def test_what_nobody_wrote_names_where_it_comes_from() -> None:
    origins = read("--parallelism.tensor_parallel_degree 2").default_origins
    assert origins["workload.seq_len"] == "the default of training.seq_len in torchtitan 0.3.0"
    assert "training.local_batch_size" in origins["layout.micro_batch"]
    assert "training.global_batch_size is not set" in origins["workload.global_batch"]
    of_config = read(
        "--module llama3 --config llama3_8b --training.local_batch_size 2"
    ).default_origins
    assert of_config["workload.seq_len"] == "what --config llama3_8b sets for training.seq_len"
    assert "layout.micro_batch" not in of_config


def test_a_pipeline_that_drains_several_times_a_step_is_not_hidden() -> None:
    reading = read(
        "--module llama3 --config llama3_8b --parallelism.pipeline_parallel_degree 2"
        " --parallelism.data_parallel_shard_degree 1 --training.local_batch_size 4"
        " --training.global_batch_size 16 --training.disable_cuda_graphs"
    )
    assert "fills and drains 4 times" in reading.reservations[0].text


def test_sequence_parallelism_may_be_off() -> None:
    reading = read(
        "--module llama3 --config llama3_8b --parallelism.tensor_parallel_degree 4"
        " --parallelism.data_parallel_shard_degree 1 --parallelism.no-enable-sequence-parallel"
    )
    assert reading.layout["sequence_parallel"] is False
    assert reading.stack["sequence_parallel"] == [True, False]


@pytest.mark.parametrize("name", ["enable_sequence_parallel", "no-enable-sequence-parallel"])
def test_a_flag_that_takes_no_value_is_refused_with_one(name: str) -> None:
    """tyro, which parses torchtitan's command line, refuses it too."""
    with pytest.raises(Invalid, match=f"{name} = true': is a flag, without a value"):
        read(f"--module llama3 --config llama3_8b --parallelism.{name}=true")


@pytest.mark.parametrize(
    ("schedule", "read_as", "chunks", "is_same"),
    [
        ("gpipe", "afab", 1, True),
        ("Interleaved1F1B", "interleaved", 2, True),
        ("ZBVZeroBubble", "zero_bubble_v", 2, True),
        ("DualPipeV", "zero_bubble_v", 2, False),
        ("LoopedBFS", "interleaved", 2, False),
    ],
)
def test_a_schedule_is_read_with_its_chunks(
    schedule: str, read_as: str, chunks: int, is_same: bool
) -> None:
    reading = read(
        "--module llama3 --config llama3_8b --parallelism.pipeline_parallel_degree 2"
        f" --parallelism.pipeline_parallel_schedule {schedule} --training.disable_cuda_graphs"
    )
    assert reading.layout["schedule"] == read_as
    assert reading.layout["virtual_stages"] == chunks
    assert is_same == (not reading.reservations)
    assert "schedules" not in reading.stack or read_as in reading.stack["schedules"]


def test_a_compiled_model_beside_split_backward_passes_is_reserved() -> None:
    text = (
        "--module llama3 --config llama3_8b --parallelism.pipeline_parallel_degree 2"
        " --parallelism.pipeline_parallel_schedule ZBVZeroBubble --training.disable_cuda_graphs"
        " --compile.enable"
    )
    (reservation,) = read(text).reservations
    assert reservation.cure == "leave --compile.enable out"
    assert read(f"{text} --compile.components loss").reservations == ()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--training.seq_len four", "training.seq_len = four"),
        ("--training.dtype float16", "bfloat16, float32"),
        ("--parallelism.enable_sequence_parallel=False", "no_enable_sequence_parallel"),
        ("--parallelism.tensor_parallel_degree", "needs a value"),
        ("--parallelism.tensor_parallel_degree $TP", "TP is not defined"),
        ("activation-checkpoint:full --training.seq_len 4096", "put it in front"),
        ("activation-checkpoint:some", "selective, full, memory-budget, none"),
        ("llama3.toml", "neither a flag nor its value"),
    ],
)
def test_values_that_torchtitan_would_refuse(flags: str, named: str) -> None:
    with pytest.raises(Invalid, match=named):
        read(f"--module llama3 --config llama3_8b {flags}")


PP = "--parallelism.pipeline_parallel_degree"
SHARDS = "--parallelism.data_parallel_shard_degree"


@pytest.mark.parametrize(
    ("flags", "setting", "rule", "cure"),
    [
        (
            "--parallelism.tensor_parallel_degree 0",
            "--parallelism.tensor_parallel_degree",
            "at least 1",
            "1",
        ),
        (f"{SHARDS} 0", SHARDS, "or -1 for", f"{SHARDS} -1"),
        (
            f"{PP} 2 --parallelism.pipeline_parallel_schedule X",
            "--parallelism.pipeline_parallel_schedule",
            "a schedule such as 1F1B",
            "",
        ),
        (
            f"--training.global_batch_size 3 --training.local_batch_size 2 {SHARDS} 64",
            "--training.global_batch_size",
            "multiple of local_batch_size",
            "--training.global_batch_size 128",
        ),
        (
            f"{PP} 2 --parallelism.pipeline_parallel_microbatch_size 3"
            " --training.local_batch_size 8",
            "--training.local_batch_size",
            "micro-batch of the pipeline = 3",
            "6 or 9",
        ),
        (
            f"{PP} 4 --parallelism.pipeline_parallel_layers_per_stage 7",
            "--parallelism.pipeline_parallel_layers_per_stage",
            "gives 5 chunks, which must be a multiple of the 4",
            "",
        ),
        (f"{SHARDS} 8 {PP} 4", SHARDS, "multiply to 32, and the job has 64", f"{SHARDS} -1"),
        (f"{PP} 3", SHARDS, "3 in all, leave of 64 devices", "divides 64"),
    ],
)
def test_what_parses_and_stops_hides_the_layout(
    flags: str, setting: str, rule: str, cure: str
) -> None:
    launcher = "torchrun --nproc_per_node 8 --nnodes 8 -m torchtitan.train"
    reading = read(f"{launcher} --module llama3 --config llama3_8b {flags}")
    (stop,) = (each for each in reading.stops if each.hides_layout)
    assert stop.setting == setting
    assert rule in stop.rule
    assert cure in stop.cure


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("--parallelism.pipeline_parallel_degree 2", ["--training.disable_cuda_graphs"]),
        ("--parallelism.pipeline_parallel_degree 2 --training.disable_cuda_graphs", []),
        (
            "--compile.enable_async_tensor_parallel",
            ["--compile.enable_async_tensor_parallel"],
        ),
        ("--compile.enable activation-checkpoint:memory-budget", []),
        ("activation-checkpoint:memory-budget", ["activation-checkpoint:memory-budget"]),
    ],
)
def test_what_torchtitan_stops_at(flags: str, settings: list[str]) -> None:
    reading = read(f"--module llama3 --config llama3_8b {flags}")
    assert [stop.setting for stop in reading.stops] == settings


def test_experts_stop_graphs_unless_their_dispatcher_does_not_wait() -> None:
    flags = "--module deepseek_v3 --training.no_disable_cuda_graphs --config deepseek_v3_16b"
    assert [stop.setting for stop in read(flags).stops] == ["--training.disable_cuda_graphs"]
    assert read(f"{flags}_hybridep").stops == ()


def test_a_script_that_is_written_is_read_again() -> None:
    job = job_of(SPARSE, dp_shard=16, ep=4, zero_stage=3, micro_batch=2, recompute="full")
    reading = read(as_shell(torchtitan_writer.write(job)))
    assert layout_read(reading, SPARSE) == job.layout
    assert reading.reservations == ()
    assert len(reading.ignored) == 9


def test_experts_mean_nothing_in_a_dense_model() -> None:
    reading = read("--module llama3 --config llama3_8b --parallelism.expert_parallel_degree 2")
    assert reading.layout["ep"] == 1


@pytest.mark.parametrize(
    "software",
    [
        {"launch": "compiled", "fused": True, "loss": "compiled"},
        {"launch": "compiled", "fused": True, "loss": "pytorch"},
        {"launch": "graph", "fused": True, "loss": "compiled"},
        {"launch": "graph", "fused": False, "loss": "pytorch"},
        {"launch": "eager", "fused": False, "loss": "compiled"},
        {"launch": "eager", "fused": False, "loss": "pytorch"},
    ],
)
def test_what_is_compiled_and_captured(software: dict[str, Any]) -> None:
    problem = replace(DENSE, stack=replace(DENSE.stack, **software))
    job = job_of(problem, dp_shard=16, zero_stage=3)
    reading = read(shlex.join(torchtitan_writer.words(torchtitan_writer.write(job).settings)))
    assert software.items() <= reading.stack.items()


def test_a_config_function_may_compile_the_loss_alone() -> None:
    reading = read("--module deepseek_v3 --config deepseek_v3_671b")
    stack = reading.stack
    assert (stack["launch"], stack["fused"], stack["loss"]) == ("eager", False, "compiled")
    problem = problem_of("torchtitan", "deepseek-v3")
    plain = replace(problem.architecture, mtp_layers=0)
    job = job_of(replace(problem, architecture=plain), dp_shard=16, zero_stage=3)
    assert torchtitan_writer.write(job).settings["config"] == "deepseek_v3_671b"
    predicting = torchtitan_writer.write(job_of(problem, dp_shard=16, zero_stage=3))
    assert "num_mtp_layers=1" in predicting.placeholders["config"]


# -- releases before 0.3.0


TOML = """
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]

[training]
local_batch_size = 2
seq_len = 8192
steps = 1000

[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 8
enable_async_tensor_parallel = true

[compile]
enable = true
components = ["model", "loss"]

[activation_checkpoint]
mode = "full"

[metrics]
log_freq = 10
"""


def test_a_toml_file_is_read_as_of_its_release() -> None:
    reading = read(TOML, "0.2.0")
    assert reading.model == {"name": "llama-3-70b"}
    assert reading.version == "0.2.0"
    assert reading.num_devices == 64
    assert reading.workload == {
        "seq_len": 8192, "precision": "fp8", "optimizer": "adamw", "global_batch": 16,
    }  # fmt: skip
    assert reading.layout["recompute"] == "full"
    assert reading.layout["micro_batch"] == 2
    assert reading.stack["launch"] == "compiled"
    assert reading.stack["overlap_tensor"] is True
    assert reading.stack["loss_chunks"] == 1
    assert reading.reservations == ()


OF_0_2_2 = """
[model]
name = "{model}"
flavor = "{flavor}"
converters = [{converters}]
[quantize.linear.float8]
enable_fsdp_float8_all_gather = {gather}
precompute_float8_dynamic_scale_for_fsdp = true
filter_fqns = ["output", "router.gate"]
[training.dataloader]
num_workers = 2
[activation_checkpoint]
per_op_sac_force_recompute_mm_shapes_by_fqns = ["moe.router.gate"]
early_stop = true
selective_ac_option = "op"
[parallelism]
data_parallel_shard_degree = 8
context_parallel_rotate_method = "allgather"
"""


@pytest.mark.parametrize(
    ("converters", "precision"),
    [("", "bf16"), ('"quantize.linear.float8"', "fp8"), ('"quantize.linear.mx"', "mxfp8")],
)
def test_narrow_formats_act_where_a_converter_is_named(converters: str, precision: str) -> None:
    text = OF_0_2_2.format(model="llama3", flavor="8B", converters=converters, gather="true")
    reading = read(text, "0.2.2")
    assert reading.workload["precision"] == precision
    assert (reading.reservations, reading.assumed) == ((), ())
    plain = read(text.replace("gather = true", "gather = false"), "0.2.2")
    assert bool(plain.assumed) == (precision == "fp8")


def test_scales_of_rows_are_read() -> None:
    converters = '"quantize.linear.float8"'
    text = OF_0_2_2.format(model="llama3", flavor="8B", converters=converters, gather="false")
    rows = read(text.replace("[training", 'recipe_name = "rowwise"\n[training', 1), "0.2.2")
    assert rows.stack["fp8_scaling"] == "rowwise"
    assert read(text, "0.2.2").stack.get("fp8_scaling", "tensorwise") == "tensorwise"


def test_experts_in_another_format_than_the_rest_are_reserved() -> None:
    def reserved(converters: str) -> list[str]:
        text = OF_0_2_2.format(
            model="deepseek_v3", flavor="16B", converters=converters, gather="true"
        )
        return [each.setting for each in read(text, "0.2.2").reservations]

    both = '"quantize.linear.float8", "quantize.grouped_mm.float8"'
    assert reserved(both) == reserved("") == []
    (setting,) = reserved('"quantize.linear.float8"')
    assert setting.startswith("model.converters")


def test_layers_that_are_not_converted_and_other_kernels_are_reserved() -> None:
    converters = '"quantize.linear.float8"'
    text = OF_0_2_2.format(model="llama3", flavor="8B", converters=converters, gather="true")
    text = text.replace('"output"', '"output", "attention.wk"')
    text = text.replace('"allgather"', '"alltoall"')
    names = {each.setting.partition(" = ")[0] for each in read(text, "0.2.2").reservations}
    assert names == {
        "quantize.linear.float8.filter_fqns",
        "parallelism.context_parallel_rotate_method",
    }


def test_every_second_layer_is_no_selective_policy_of_operations() -> None:
    text = TOML.replace('"full"', '"selective"')
    assert "selective_ac_option = 2" in read(text).reservations[0].text
    by_operation = text.replace("[metrics]", "selective_ac_option = 'op'\n[metrics]")
    assert read(by_operation).layout["recompute"] == "selective"
    assert read(by_operation).reservations == ()


def test_flags_of_earlier_releases_are_read() -> None:
    reading = read(
        "torchrun --nproc_per_node=8 train.py --model.name llama3 --model.flavor 8B"
        " --training.compile --activation_checkpoint.mode none --job.description x"
    )
    assert reading.model == {"name": "llama-3-8b"}
    assert reading.layout["recompute"] == "none"
    assert reading.stack["launch"] == "compiled"
    assert reading.layout["dp_shard"] == 8
    assert reading.version == "0.2.2"


EARLIER_OF_32 = (
    "torchrun --nnodes 4 --nproc_per_node 8 train.py --model.name {} --model.flavor {}"
    " --activation_checkpoint.mode full"
)


@pytest.mark.parametrize(
    ("model", "flavor", "flags", "stopped"),
    [
        ("qwen3", "8B", "pipeline_parallel_degree 2", "pipeline_parallel_degree"),
        ("gpt_oss", "20b", "pipeline_parallel_degree 2", "pipeline_parallel_degree"),
        ("llama3", "8B", "pipeline_parallel_degree 2", None),
        ("deepseek_v3", "16B", "context_parallel_degree 2", "context_parallel_degree"),
        ("llama4", "17bx16e", "context_parallel_degree 2", "context_parallel_degree"),
        ("gpt_oss", "20b", "context_parallel_degree 2", "context_parallel_degree"),
        ("qwen3", "8B", "context_parallel_degree 2", None),
        (
            "llama3",
            "8B",
            "tensor_parallel_degree 4 --parallelism.enable_async_tensor_parallel",
            "enable_async_tensor_parallel",
        ),
        (
            "llama3",
            "8B",
            "tensor_parallel_degree 4 --parallelism.enable_async_tensor_parallel --compile.enable",
            None,
        ),
        ("llama3", "8B", "enable_async_tensor_parallel", None),
        (
            "llama3",
            "8B",
            "data_parallel_replicate_degree 8 --parallelism.tensor_parallel_degree 4",
            "data_parallel_replicate_degree",
        ),
        (
            "llama3",
            "8B",
            "data_parallel_replicate_degree 4 --parallelism.tensor_parallel_degree 4",
            None,
        ),
        ("llama3", "8B", "data_parallel_replicate_degree 32", None),
        (
            "deepseek_v3",
            "16B",
            "tensor_parallel_degree 4 --parallelism.expert_parallel_degree 4"
            " --parallelism.expert_tensor_parallel_degree 2",
            "expert_tensor_parallel_degree",
        ),
    ],
)
def test_an_earlier_release_stops_where_it_refuses_to_start(
    model: str, flavor: str, flags: str, stopped: str | None
) -> None:
    text = f"{EARLIER_OF_32.format(model, flavor)} --parallelism.{flags}"
    stops = read(text).stops
    assert [stop.setting for stop in stops] == ([f"--parallelism.{stopped}"] if stopped else [])
    assert all(stop.source.startswith("torchtitan 0.2.2: ") for stop in stops)


def test_an_earlier_release_stops_at_converters_and_recompute_that_it_refuses() -> None:
    text = EARLIER_OF_32.format("llama3", "8B")
    budget = text.replace("mode full", "mode memory_budget")
    assert [stop.setting for stop in read(budget).stops] == ["--activation_checkpoint.mode"]
    assert read(f"{budget} --compile.enable").stops == ()
    float8 = f"{text} --model.converters quantize.linear.float8"
    section = "--quantize.linear.float8"
    recipe = f"{section}.recipe_name rowwise"
    gathers = f"{section}.enable_fsdp_float8_all_gather"
    (stop,) = read(f"{float8} {recipe} {gathers}").stops
    assert stop.setting == gathers
    assert read(f"{float8} {recipe}").stops == ()
    assert read(f"{float8} {gathers}").stops == ()
    assert read(f"{text} {recipe} {gathers}").stops == ()  # nothing is converted


@pytest.mark.parametrize("axis", ["pipeline", "expert"])
def test_an_optimizer_in_backward_is_not_described_and_alone(axis: str) -> None:
    text = EARLIER_OF_32.format("llama3", "8B") + " --optimizer.early_step_in_backward"
    reading = read(text)
    assert reading.stops == ()
    assert "early_step_in_backward" in reading.reservations[0].setting
    stops = read(f"{text} --parallelism.{axis}_parallel_degree 2").stops
    assert [stop.setting for stop in stops] == ["--optimizer.early_step_in_backward"]


def test_experts_of_an_earlier_release_may_be_cut_by_tensor_parallelism() -> None:
    text = (
        EARLIER_OF_32.format("deepseek_v3", "16B")
        + " --parallelism.tensor_parallel_degree 4 --parallelism.expert_parallel_degree 4"
        " --parallelism.expert_tensor_parallel_degree 4"
    )
    reading = read(text)
    assert reading.stops == ()
    assert (reading.layout["ep"], reading.layout["etp"]) == (4, 4)
    assert reading.stack["expert_tensor_parallel"] is True
    without_experts = text.replace("expert_parallel_degree 4", "expert_parallel_degree 1")
    assert read(without_experts).layout["etp"] == 4
    dense = text.replace("deepseek_v3", "llama3").replace("16B", "8B")
    assert read(dense).layout["etp"] == 1


@pytest.mark.parametrize(
    "flags",
    ["--training.deterministic", "--fault_tolerance.enable", "--experimental.custom_import my.job"],
)
def test_settings_of_an_earlier_release_that_change_the_job_are_reserved(flags: str) -> None:
    (reservation,) = read(f"{EARLIER_OF_32.format('llama3', '8B')} {flags}").reservations
    assert reservation.setting.startswith(flags.split()[0].removeprefix("--"))


def test_a_number_of_layers_that_splits_unevenly_says_one_that_does_not() -> None:
    text = (
        EARLIER_OF_32.format("llama3", "8B")
        + " --parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule 1F1B"
        " --parallelism.pipeline_parallel_layers_per_stage {}"
    )
    reading = read(text.format(4))
    (stop,) = reading.stops
    assert (stop.value, stop.cure) == (4, "--parallelism.pipeline_parallel_layers_per_stage 9")
    assert stop.source.startswith("torchtitan 0.2.2: ")
    assert reading.reservations == ()
    assert read(text.format(9)).stops == ()


_FIELDS = field_table(torchtitan_writer.TABLE).fields
_FLAGS = st.tuples(
    st.sampled_from([name for name, field in _FIELDS.items() if field.use == "read"]),
    st.sampled_from(["", " 0", " 1", " -1", " 4", "=nan", " 1e400", " true", " full", " a,b c"]),
)


@given(st.lists(_FLAGS, max_size=6))
def test_whatever_is_written_is_read_or_refused(flags: list[tuple[str, str]]) -> None:
    with suppress(Invalid):
        written_ = " ".join(f"--{name}{value}" for name, value in flags)
        reading = read(f"--module llama3 --config llama3_8b {written_}")
        LayoutFields.model_validate(reading.layout)
        WorkloadFields.model_validate({"global_batch": 1, **reading.workload})


def test_what_an_unknown_function_may_set_is_left_open() -> None:
    reading = read("--training.seq_len 4096")
    assert not reading.workload.keys() & {"precision", "optimizer"}
    assert "--config" in reading.reservations[0].text
    whole = read("--training.mixed_precision_param float32 --optimizer.implementation fused")
    assert (whole.workload["precision"], whole.workload["optimizer"]) == ("fp32", "adamw")


def test_a_release_has_its_own_names_of_settings() -> None:
    name_in = FORMATS["torchtitan"].name_in
    moved = "compile.enable_async_tensor_parallel"
    assert name_in(moved, None) == name_in(moved, "0.3.0") == moved
    assert name_in(moved, "0.2.2") == "parallelism.enable_async_tensor_parallel"
    assert name_in("activation_checkpoint", "v0.2.2") == "activation_checkpoint.mode"
    assert name_in("training.seq_len", "0.2.2") == "training.seq_len"


@pytest.mark.parametrize("written", ["model,loss", "loss,model"])
def test_what_is_compiled_stands_in_any_order(written: str) -> None:
    reading = read(f"--compile.enable --compile.components {written}")
    assert reading.stack["loss"] == "compiled"

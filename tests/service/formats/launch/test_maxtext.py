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
from models.spec.architecture import Architecture, MoeShape
from models.spec.layout import AXES, Layout
from models.spec.problem import Problem
from service.formats.launch.job import Inexpressible, Job, LaunchReading
from service.formats.launch.maxtext import reader as maxtext_reader
from service.formats.launch.maxtext import writer as maxtext_writer
from service.formats.launch.maxtext.mesh import devices_per_slice
from service.formats.launch.rendering import as_shell
from service.formats.settings.field_table import field_table
from service.formats.shell.files import LaunchFiles
from service.schemas.layout import LayoutFields
from service.schemas.workload import WorkloadFields
from tests.long import examples
from tests.service.formats.launch.jobs import job_of, layout_read, problem_of, written

DENSE = problem_of("maxtext")
SPARSE = problem_of("maxtext", "mixtral-8x7b")
TPU = replace(DENSE, cluster=catalogue.cluster("tpu-v5p", 8))
SLICES = replace(SPARSE, cluster=catalogue.cluster("tpu-v6e", 8, torus_shape=(2, 2)))
SHARDINGS: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 3),
    "recompute": ("selective", "full"),
    "offload_optimizer": (False, True),
    "ep": (1, 2),
    "micro_batch": (4,),
}
POLICIES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (3,),
    "recompute": ("selective",),
    "recompute_modules": (
        (),
        ("layernorm", "mlp_act", "core_attn"),
        ("layernorm", "mlp_act"),
        ("layernorm", "mlp"),
        ("layernorm", "moe_act", "core_attn"),
        ("layernorm", "moe_act"),
        ("layernorm", "moe"),
        ("layernorm", "mlp", "core_attn", "out_proj"),
        ("layernorm", "mlp_act", "mlp_gate"),
    ),
    "offload_activations": (False, True),
}
PLACEMENTS: dict[str, tuple[Any, ...]] = {
    "zero_stage": (3,),
    "recompute": ("full",),
    "offload_activations": (False, True),
    "placement": (AXES, ("dp_shard", "tp", "cp", "dp_replicate", "pp")),
}


def read(text: str, version: str | None = None) -> LaunchReading:
    return maxtext_reader.read(text, version)


def as_it_is_read(job: Job) -> Layout:
    """Weights that nothing shards are whole, however they would be sharded; and without a pipeline
    parameters are gathered again for backward."""
    layout = job.layout
    alone = layout.dp_shard * layout.cp * layout.dp_replicate == 1
    if layout.zero_stage == 3 and alone and not layout.offload_optimizer:
        layout = replace(layout, zero_stage=0)
    return replace(layout, placement=AXES, torus_axes=("z", "y", "x"))


@pytest.mark.parametrize(
    "choices", [SHARDINGS, POLICIES, PLACEMENTS], ids=["shardings", "policies", "placements"]
)
@pytest.mark.parametrize(
    "problem", [DENSE, SPARSE, TPU, SLICES], ids=["dense", "sparse", "tpu", "slices"]
)
def test_a_layout_that_is_written_is_read_again(problem: Problem, choices: Any) -> None:
    @given(written(problem, maxtext_writer.write, **choices))
    @settings(max_examples=examples(24))
    def check(made: Any) -> None:
        job, configuration = made
        reading = read(shlex.join(maxtext_writer.words(configuration.settings)))
        found = layout_read(reading, problem)
        plain = replace(found, placement=AXES, torus_axes=("z", "y", "x"))
        assert plain == as_it_is_read(job)
        assert reading.num_devices == job.layout.num_devices
        assert reading.num_micro_batches == job.num_micro_batches
        assert reading.workload["global_batch"] == problem.workload.global_batch
        assert reading.model == {"name": problem.architecture.name}
        assert reading.reservations == ()
        assert reading.stops == ()
        if found.zero_stage == job.layout.zero_stage:
            again = maxtext_writer.write(replace(job, layout=found))
            assert again.settings == configuration.settings

    check()


def test_a_plain_layout_is_written_as_settings() -> None:
    job = job_of(DENSE, dp_shard=8, tp=2, zero_stage=3, micro_batch=4, recompute="full")
    configuration = maxtext_writer.write(job)
    text = shlex.join(maxtext_writer.words(configuration.settings))
    assert "model_name=llama3.1-8b hardware=gpu max_target_length=4096" in text
    assert "per_device_batch_size=2 gradient_accumulation_steps=2" in text
    assert "remat_policy=full" in text
    settings = configuration.settings
    assert (settings["ici_tensor_parallelism"], settings["dcn_tensor_parallelism"]) == (2, 1)
    assert (settings["ici_fsdp_parallelism"], settings["dcn_fsdp_parallelism"]) == (4, 2)
    assert configuration.slurm["nodes"] == 2


def test_a_device_may_have_a_fraction_of_a_sequence() -> None:
    job = job_of(DENSE, dp_shard=2, tp=8, zero_stage=3, micro_batch=1)
    settings = maxtext_writer.write(job).settings
    assert settings["per_device_batch_size"] == 0.125
    assert settings["gradient_accumulation_steps"] == 32


@pytest.mark.parametrize("devices", [6, 12, 24, 28, 36, 72, 144, 576])
def test_what_is_cut_off_behind_the_point_is_no_sequence(devices: int) -> None:
    for sequences in range(1, 1000):
        assert int(devices * maxtext_writer.per_device(sequences, devices)) == sequences


def test_slices_are_joined_by_the_outer_axes() -> None:
    job = job_of(SLICES, dp_replicate=2, dp_shard=2, tp=2, ep=2, zero_stage=3)
    settings = maxtext_writer.write(job).settings
    assert devices_per_slice(SLICES.cluster) == 4
    assert settings["dcn_data_parallelism"] == 2
    assert settings["ici_data_parallelism"] == 1
    assert settings["ici_expert_parallelism"] == 2
    assert settings["ici_fsdp_parallelism"] == 1
    ici = [value for name, value in settings.items() if name.startswith("ici_")]
    dcn = [value for name, value in settings.items() if name.startswith("dcn_")]
    assert (_product(ici), _product(dcn)) == (4, 2)


def _product(values: list[Any]) -> int:
    product = 1
    for value in values:
        product *= value
    return product


def test_experts_over_context_have_a_mesh_of_their_own() -> None:
    job = job_of(SPARSE, dp_shard=4, cp=4, ep=8, zero_stage=3)
    settings = maxtext_writer.write(job).settings
    assert settings["custom_mesh_and_rule"] == "cp-as-ep"
    assert settings["ici_expert_parallelism"] * settings["dcn_expert_parallelism"] == 2
    assert settings["ici_context_parallelism"] == 4


@pytest.mark.parametrize(
    ("knobs", "policy"),
    [
        ({"recompute": "full"}, {"remat_policy": "full"}),
        (
            {"recompute_modules": ("layernorm", "mlp_act", "core_attn")},
            {"remat_policy": "minimal"},
        ),
        (
            {"recompute_modules": ("layernorm", "mlp_act")},
            {"remat_policy": "minimal_with_context"},
        ),
        (
            {"recompute_modules": ("layernorm", "mlp")},
            {"remat_policy": "save_dot_with_context_except_mlp"},
        ),
        (
            {
                "recompute_modules": ("layernorm", "mlp_act", "core_attn"),
                "offload_activations": True,
            },
            {"remat_policy": "minimal_offloaded"},
        ),
        (
            {"recompute": "full", "offload_activations": True},
            {"remat_policy": "custom", "decoder_layer_input": "offload"},
        ),
    ],
)
def test_recompute_is_written_as_a_remat_policy(
    knobs: dict[str, Any], policy: dict[str, Any]
) -> None:
    knobs = {"recompute": "selective", **knobs}
    settings = maxtext_writer.write(job_of(DENSE, dp_shard=16, zero_stage=3, **knobs)).settings
    assert policy.items() <= settings.items()


def test_experts_are_kept_by_custom_policies_alone() -> None:
    job = job_of(SPARSE, dp_shard=16, zero_stage=3, recompute="selective")
    settings = maxtext_writer.write(job).settings
    assert settings["remat_policy"] == "custom"
    assert settings["moe_mlpwi_1"] == "device"
    assert "context" not in settings


def test_latents_are_kept_where_their_projections_are_repeated() -> None:
    problem = problem_of("maxtext", "deepseek-v3")
    modules = ("layernorm", "mlp_act", "moe_act", "mla_up_proj")
    job = job_of(
        problem, dp_shard=16, zero_stage=3, recompute="selective", recompute_modules=modules
    )
    settings = maxtext_writer.write(job).settings
    assert settings["kv_wa_proj"] == settings["query_wa_proj"] == "device"
    assert "key_proj" not in settings
    assert settings["mtp_num_layers"] == 1
    reading = read(shlex.join(maxtext_writer.words(settings)))
    assert reading.layout["recompute_modules"] == [*modules]
    assert reading.model == {"name": "deepseek-v3"}


@pytest.mark.parametrize(
    ("knobs", "field", "cure"),
    [
        ({"cp": 2, "dp_replicate": 8, "zero_stage": 0}, "layout.zero_stage", "zero_stage 3"),
        ({"dp_shard": 16, "zero_stage": 2}, "layout.zero_stage", "ask with 3"),
        ({"dp_shard": 16, "zero_stage": 3, "reshard": False}, "layout.reshard", "pipeline"),
        (
            {"dp_shard": 16, "zero_stage": 3, "recompute_modules": ("core_attn",)},
            "layout.recompute_modules",
            "layernorm",
        ),
        ({"dp_shard": 16, "zero_stage": 3, "recompute": "none"}, "layout.recompute", "selective"),
        ({"dp_shard": 16, "zero_stage": 3, "schedule": "afab"}, "layout.schedule", "1f1b"),
        ({"pp": 2, "dp_shard": 8, "zero_stage": 3, "schedule": "1f1b"}, "layout.schedule", "afab"),
        ({"tp": 2, "dp_shard": 8, "sequence_parallel": False}, "layout.sequence_parallel", "true"),
    ],
)
def test_a_knob_that_no_setting_says_is_refused_with_a_cure(
    knobs: dict[str, Any], field: str, cure: str
) -> None:
    if "recompute_modules" in knobs:
        knobs = {**knobs, "recompute": "selective"}
    with pytest.raises(Inexpressible, match=cure) as raised:
        maxtext_writer.write(job_of(DENSE, **knobs))
    assert raised.value.field == field


def test_experts_that_fold_over_tensor_are_not_said() -> None:
    job = job_of(SPARSE, dp_shard=2, cp=4, tp=2, ep=8, zero_stage=3)
    with pytest.raises(Inexpressible, match="divides dp_shard"):
        maxtext_writer.write(job)


@pytest.mark.parametrize(
    ("workload", "problem", "settings"),
    [
        ({"precision": "fp8"}, DENSE, {"quantization": "fp8"}),
        ({"precision": "int8"}, TPU, {"quantization": "int8"}),
        ({"precision": "fp32"}, TPU, {"dtype": "float32"}),
        ({"optimizer": "muon"}, DENSE, {"opt_type": "muon"}),
    ],
)
def test_number_formats_and_optimizers_are_written(
    workload: dict[str, Any], problem: Problem, settings: dict[str, Any]
) -> None:
    asked = replace(problem, workload=replace(problem.workload, **workload))
    num_devices = asked.cluster.num_devices
    job = job_of(asked, dp_shard=num_devices, zero_stage=3, micro_batch=64 // num_devices)
    written_ = maxtext_writer.write(job).settings
    assert settings.items() <= written_.items()
    assert workload.items() <= read(shlex.join(maxtext_writer.words(written_))).workload.items()


def test_moments_of_16_bits_are_not_said() -> None:
    asked = replace(DENSE, workload=replace(DENSE.workload, optimizer="adamw_bf16_moments"))
    with pytest.raises(Inexpressible, match="first moment only"):
        maxtext_writer.write(job_of(asked, dp_shard=16, zero_stage=3))


def test_a_pipeline_has_plain_stages() -> None:
    job = job_of(DENSE, pp=4, dp_shard=4, zero_stage=3, micro_batch=2)
    settings = maxtext_writer.write(job).settings
    assert settings["num_layers_per_pipeline_stage"] == 8
    assert settings["num_pipeline_repeats"] == 1
    assert settings["num_pipeline_microbatches"] == 8
    assert settings["per_device_batch_size"] == 4
    reading = read(shlex.join(maxtext_writer.words(settings)))
    assert layout_read(reading, DENSE).pp == 4
    assert reading.num_micro_batches == 8


def test_dense_layers_in_front_stay_outside_a_pipeline() -> None:
    moe = MoeShape(num_experts=8, experts_per_token=2, moe_intermediate_size=512, first_k_dense=1)
    architecture = Architecture.from_shape(
        name="mine",
        num_layers=8,
        hidden_size=1024,
        intermediate_size=4096,
        num_attention_heads=16,
        vocab_size=32000,
        moe=moe,
    )
    problem = replace(DENSE, architecture=architecture)
    with pytest.raises(Inexpressible, match="outside its pipeline"):
        maxtext_writer.write(job_of(problem, pp=2, dp_shard=8, zero_stage=3))


def test_a_model_without_a_file_has_its_sizes() -> None:
    architecture = replace(DENSE.architecture, layers=DENSE.architecture.layers[:4], name="small")
    job = job_of(replace(DENSE, architecture=architecture), dp_shard=16, zero_stage=3)
    configuration = maxtext_writer.write(job)
    assert configuration.settings["base_num_decoder_layers"] == 4
    assert "model_name" not in configuration.placeholders
    reading = read(shlex.join(maxtext_writer.words(configuration.settings)))
    assert reading.model is not None
    shape = {**reading.model, "name": "small"}
    assert Architecture.from_shape(**shape) == architecture


def test_a_model_that_cannot_be_said_has_a_placeholder() -> None:
    problem = problem_of("maxtext", "gemma-2-9b")
    configuration = maxtext_writer.write(job_of(problem, dp_shard=16, zero_stage=3))
    assert "model_name" in configuration.placeholders
    assert "model_name" not in configuration.settings


# -- reading


COMMAND = "python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml"


def test_defaults_are_those_of_base_yml() -> None:
    reading = read(f"{COMMAND} run_name=x model_name=llama3.1-8b")
    assert reading.num_devices is None
    assert "dp_shard" not in reading.layout
    assert "dp_replicate" not in reading.layout
    assert "global_batch" not in reading.workload
    assert reading.layout["zero_stage"] == 3
    assert reading.layout["recompute"] == "full"
    assert reading.layout["micro_batch"] == 12
    assert reading.num_micro_batches == 1
    assert reading.workload["seq_len"] == 2048
    assert reading.ignored == ("run_name = x",)


def test_a_degree_across_slices_that_is_the_rest_follows_from_their_number() -> None:
    text = (
        f"{COMMAND} model_name=llama3.1-8b per_device_batch_size=2 ici_tensor_parallelism=4"
        " ici_fsdp_parallelism=8 num_slices=2"
    )
    reading = read(text)
    assert (reading.layout["dp_replicate"], reading.layout["dp_shard"]) == (2, 8)
    assert reading.layout["tp"] == 4
    assert reading.layout["micro_batch"] == 8
    assert reading.workload["global_batch"] == 128
    assert reading.layout["placement"] == ["tp", "cp", "dp_shard", "dp_replicate", "pp"]


OF_XPK = (
    'xpk workload create --cluster c --workload w --tpu-type={} --num-slices={} --command "'
    + COMMAND
    + ' model_name=llama3.1-8b per_device_batch_size=2 {}"'
)


@pytest.mark.parametrize(
    ("type_", "slices", "words", "replicas", "shards"),
    [
        ("v5p-128", 2, "", 2, None),
        ("v5p-128", 2, "ici_fsdp_parallelism=64", 2, 64),
        ("v5p-128", 4, "num_slices=2 ici_fsdp_parallelism=128", 2, 128),
        ("v5p-128", 1, "", 1, None),
        ("tpu7x-128", 2, "ici_fsdp_parallelism=128", 2, 128),  # two devices a chip
        ("v5p-128", 2, "compile_topology=v5e-256 ici_fsdp_parallelism=256", 2, 256),
    ],
)
def test_slices_that_the_scheduler_is_asked_for_fill_the_mesh(
    type_: str, slices: int, words: str, replicas: int, shards: int | None
) -> None:
    reading = read(OF_XPK.format(type_, slices, words))
    assert reading.stops == ()
    layout = reading.layout
    assert (layout["dp_replicate"], layout.get("dp_shard")) == (replicas, shards)


@pytest.mark.parametrize(
    ("slices", "words", "setting", "cure"),
    [
        (2, "ici_fsdp_parallelism=128", "ici_fsdp_parallelism", "ici_fsdp_parallelism=64"),
        (2, "ici_tensor_parallelism=3", "ici_fsdp_parallelism", ""),
        (1, "dcn_data_parallelism=2", "dcn_data_parallelism", "dcn_data_parallelism=1"),
        (4, "dcn_data_parallelism=2", "dcn_data_parallelism", "dcn_data_parallelism=4"),
    ],
)
def test_degrees_that_do_not_make_the_slices_stop(
    slices: int, words: str, setting: str, cure: str
) -> None:
    (stop,) = read(OF_XPK.format("v5p-128", slices, words)).stops
    assert (stop.setting, stop.cure) == (setting, cure)


def test_a_file_in_yaml_is_read_too() -> None:
    reading = read(
        """
        # a comment
        model_name: "mixtral-8x7b"
        per_device_batch_size: 1.0
        ici_fsdp_parallelism: 8
        ici_expert_parallelism: 8
        dcn_data_parallelism: 2
        remat_policy: custom
        context: device
        out_proj: device
        query_proj: device
        key_proj: device
        value_proj: device
        """
    )
    assert reading.num_devices == 128
    assert (reading.layout["dp_shard"], reading.layout["dp_replicate"]) == (64, 2)
    assert reading.layout["ep"] == 8
    assert reading.layout["recompute_modules"] == ["layernorm", "moe"]
    assert reading.reservations == ()


def test_layers_without_a_policy_are_recomputed_as_a_whole() -> None:
    reading = read("model_name=llama3.1-8b remat_policy=none")
    assert reading.layout["recompute"] == "full"
    assert reading.reservations == ()


@pytest.mark.parametrize(
    ("policy", "modules", "is_same"),
    [
        ("minimal", ["layernorm", "mlp_act", "core_attn"], True),
        ("minimal_flash", ["layernorm", "mlp_act"], True),
        ("save_dot_except_mlp", ["layernorm", "mlp", "core_attn"], True),
        ("save_dot_except_mlpwi", ["layernorm", "mlp", "core_attn"], True),
        ("save_qkv_proj", ["layernorm", "mlp", "core_attn", "out_proj"], True),
        ("qkv_proj_offloaded", ["layernorm", "mlp", "core_attn", "out_proj"], True),
        ("save_out_proj", None, False),
    ],
)
def test_a_remat_policy_is_read_as_the_modules_it_recomputes(
    policy: str, modules: list[str] | None, is_same: bool
) -> None:
    reading = read(f"model_name=llama3.1-8b remat_policy={policy}")
    assert reading.layout.get("recompute_modules") == modules
    assert reading.layout["recompute"] == ("selective" if modules else "full")
    assert is_same == (reading.reservations == ())


def test_offloaded_layer_inputs_are_read_with_all_else_recomputed() -> None:
    reading = read("model_name=llama3.1-8b remat_policy=custom decoder_layer_input=offload")
    assert reading.layout["recompute"] == "full"
    assert reading.layout["offload_activations"] is True
    idle = read("model_name=llama3.1-8b remat_policy=full decoder_layer_input=offload")
    assert idle.layout["offload_activations"] is False
    assert "without remat_policy=custom" in idle.ignored[0]


def test_a_circular_pipeline_is_not_hidden() -> None:
    text = "model_name=llama3.1-8b ici_pipeline_parallelism=4 ici_fsdp_parallelism=2"
    assert "num_pipeline_repeats = 8" in read(text).reservations[0].text
    plain = read(f"{text} num_layers_per_pipeline_stage=8 per_device_batch_size=1")
    assert plain.reservations == ()
    assert (plain.num_micro_batches, plain.layout["micro_batch"]) == (4, 1)


def test_settings_of_the_environment_are_read() -> None:
    reading = read(
        'export LIBTPU_INIT_ARGS="--xla_x=true --xla_tpu_enable_latency_hiding_scheduler=false"\n'
        f"M_PER_DEVICE_BATCH_SIZE=3 {COMMAND}"
        " model_name=llama3.1-8b"
    )
    assert reading.layout["micro_batch"] == 3
    (scheduler,) = reading.reservations
    assert "latency_hiding_scheduler=false" in scheduler.setting
    assert "predicted as overlapped" in scheduler.reason
    assert "LIBTPU_INIT_ARGS = --xla_x=true" in reading.ignored


def test_settings_that_could_matter_are_listed() -> None:
    reading = read(
        "model_name=llama3.1-8b ici_tensor_paralelism=4 float32_logits=true sa_block_kv=512 steps=5"
        " weight_dtype=bfloat16 base.foo=1 mu_dtype=float32"
    )
    listed = "; ".join(each.text for each in reading.reservations)
    assert "float32_logits = true" in listed
    assert "mu_dtype = float32" in listed
    assert reading.workload["master_weights"] is False
    assert reading.ignored == ("sa_block_kv = 512", "steps = 5")


def test_maxtext_stops_at_settings_that_it_does_not_have() -> None:
    text = "model_name=llama3.1-8b ici_tensor_paralelism=4 base.foo=1"
    misspelt, unknown = read(text).stops
    assert (misspelt.setting, misspelt.value) == ("ici_tensor_paralelism", "4")
    assert "did you mean ici_tensor_parallelism" in misspelt.rule
    assert unknown.setting == "base.foo"
    older = read(text, "0.1.0")
    assert older.stops == ()
    assert any("did you mean ici_tensor_parallelism" in one.cure for one in older.reservations)


def test_a_file_of_settings_must_be_sent() -> None:
    command = "python3 -m maxtext.trainers.pre_train.train mine.yml model_name=llama3.1-8b"
    with pytest.raises(Invalid, match="not sent: send the text of that file") as caught:
        read(command)
    assert caught.value.value == "mine.yml"
    file = "base_config: base.yml\nper_device_batch_size: 2\nmax_target_length: 4096\n"
    reading = read(f"cat > mine.yml <<EOF\n{file}EOF\n{command} max_target_length=8192")
    assert reading.layout["micro_batch"] == 2
    assert reading.workload["seq_len"] == 8192
    assert (reading.reservations, reading.default_origins) == ((), {})


CONFIGS = '"${MAXTEXT_CONFIGS_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/maxtext/configs}"'
TRAIN = "python3 -m maxtext.trainers.pre_train.train"


def test_a_file_of_the_package_need_not_be_sent() -> None:
    reading = read(f"{TRAIN} {CONFIGS}/gpu/models/llama2_7b.yml ici_fsdp_parallelism=8")
    assert reading.model == {"name": "llama-2-7b"}
    assert reading.layout["micro_batch"] == 4
    assert reading.layout["recompute_modules"] == ["layernorm", "mlp_act"]
    assert (reading.reservations, reading.warnings) == ((), ())
    moved = read(f"{TRAIN} {CONFIGS}/models/gpu/llama2_7b.yml ici_fsdp_parallelism=8")
    assert moved.layout == reading.layout
    assert "gpu/models/llama2_7b.yml was read" in moved.warnings[0]
    with pytest.raises(Invalid, match="not sent"):
        read(f"{TRAIN} mine/llama2_7b.yml ici_fsdp_parallelism=8")


def test_a_file_that_is_sent_goes_before_that_of_the_package() -> None:
    sent = LaunchFiles({"configs/post_train/sft.yml": "model_name: mistral-7b\n"})
    text = f"{TRAIN} src/maxtext/configs/post_train/sft.yml"
    assert maxtext_reader.read(text, None, files=sent).model == {"name": "mistral-7b"}


def test_a_program_without_a_file_starts_from_its_own() -> None:
    module = "maxtext.trainers.post_train.sft.train_sft"
    command = f"python3 -m {module} model_name=llama3.1-8b"
    reading = read(command)
    assert "use_tunix_gradient_accumulation = true" in reading.ignored
    assert reading.stops == ()
    assert reading.reservations == ()
    (reservation,) = read(f"{command} gradient_accumulation_steps=2").reservations
    assert "use_tunix_gradient_accumulation" in reservation.setting


def test_reinforcement_learning_has_settings_of_its_own() -> None:
    module = "maxtext.trainers.post_train.rl.train_rl"
    reading = read(f"python3 -m {module} model_name=qwen3-8b rl.num_generations=4 batch_size=2")
    assert reading.stops == ()
    assert any("generates" in one.reason for one in reading.reservations)
    assert len(read("model_name=qwen3-8b rl.num_generations=4 batch_size=2").stops) == 2


def test_the_file_of_a_model_goes_before_other_files() -> None:
    text = "model_name: mixtral-8x7b\nbase_num_decoder_layers: 5\n"
    reading = read(text)
    assert reading.model == {"name": "mixtral-8x7b"}
    assert "base_num_decoder_layers = 5 is left out" in reading.warnings[0]


def test_sizes_that_differ_from_the_model_stop_maxtext_unless_it_is_told() -> None:
    text = "model_name=llama3.1-8b base_num_decoder_layers=4"
    (stop,) = read(text).stops
    assert (stop.setting, stop.cure) == ("base_num_decoder_layers", "override_model_config=true")
    assert read("model_name=llama3.1-8b base_num_decoder_layers=32").stops == ()
    changed = read(f"{text} override_model_config=true")
    assert changed.model is not None
    assert changed.model["num_layers"] == 4
    assert changed.model["vocab_size"] == 128256
    assert (changed.stops, changed.reservations) == ((), ())


@pytest.mark.parametrize(
    ("scale", "layers", "width", "heads", "network"),
    [(1, 16, 2048, 16, 7168), (2, 16, 2048, 32, 14336), (4, 16, 4096, 32, 14336)]
    + [(8, 32, 4096, 32, 14336), (1024, 128, 16384, 256, 114688)],
)
def test_a_scale_multiplies_the_sizes_of_layers(
    scale: int, layers: int, width: int, heads: int, network: int
) -> None:
    model = read(f"global_parameter_scale={scale} base_emb_dim=2048").model
    assert model is not None
    sizes = ("num_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    assert tuple(model[name] for name in sizes) == (layers, width, heads, network)


def test_a_scale_that_is_no_power_of_two_stops_maxtext() -> None:
    (stop,) = read("global_parameter_scale=48").stops
    assert (stop.setting, stop.cure) == ("global_parameter_scale", "global_parameter_scale=32")


def test_a_setting_with_a_colon_is_a_word_that_stops_maxtext() -> None:
    text = f"{TRAIN} base.yml model_name=llama3.1-8b enable_checkpointing: False scan_layers"
    colon, bare = read(text).stops
    assert (colon.setting, colon.meant, colon.value) == (
        "enable_checkpointing:",
        "enable_checkpointing",
        "False",
    )
    assert "did you mean enable_checkpointing=False?" in colon.rule
    assert bare.meant == "scan_layers"


def test_words_without_any_setting_are_of_another_program() -> None:
    with pytest.raises(Invalid, match="no key=value"):
        read("a b c.yml")


def test_fp32_logits_cost_nothing_on_tpus_alone() -> None:
    text = "model_name=llama3.1-8b logits_dot_in_fp32=true"
    assert read(text).reservations == ()
    assert len(read(f"{text} hardware=gpu").reservations) == 1
    assert len(read(f"{text} matmul_precision=highest").reservations) >= 1


def test_the_gate_alone_is_computed_again() -> None:
    kept = ("query_proj", "key_proj", "value_proj", "out_proj", "context", "mlpwi_0", "mlpwo")
    tensors = " ".join(f"{name}=device" for name in kept)
    reading = read(f"model_name=llama3.1-8b remat_policy=custom {tensors}")
    assert reading.layout["recompute_modules"] == ["layernorm", "mlp_act", "mlp_gate"]
    assert reading.reservations == ()


def test_what_nobody_wrote_names_where_it_comes_from() -> None:
    origins = read("model_name=llama3.1-8b per_device_batch_size=2").default_origins
    assert list(origins) == ["workload.seq_len"]
    assert "default of max_target_length, which is 2048 in MaxText 0.2.5" in str(origins)


def test_models_that_the_catalogue_lacks_are_to_be_described() -> None:
    assert read("model_name=gemma4-26b").model is None
    (unknown,) = read("model_name=gemma4-26b").reservations
    assert "describe" in unknown.cure
    assert unknown.answered_by == "model"
    mtp = read("model_name=deepseek3-671b")
    assert mtp.model is not None
    assert (mtp.model["name"], mtp.model["mtp_layers"]) == ("deepseek-v3", 0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ici_tensor_parallelism=four", "must be a whole number"),
        ("ici_tensor_parallelism=-1 ici_fsdp_parallelism=1", "the axis of tp"),
        ("remat_policy=some", "minimal_with_context"),
        ("opt_type=lion", "adamw, adam_pax, sgd, muon"),
        ("context=host", "remat, device, offload"),
        ("per_device_batch_size=0.5", "whole numbers"),
        ("model_name=lama3-8b", "did you mean llama3-8b"),
        ("dtype=bfloat", "must be one of"),
        ("scan_layers=maybe", "true or false"),
        ("ici_tensor_parallelism=$TP", "TP is not defined"),
        (
            "ici_fsdp_parallelism=6 dcn_data_parallelism=1 attention=fast",
            "attention",
        ),
    ],
)
def test_values_that_maxtext_would_refuse(text: str, named: str) -> None:
    name = "" if "model_name" in text else " model_name=llama3.1-8b"
    with pytest.raises(Invalid, match=named):
        read(f"{COMMAND} {text}{name}")


def test_a_script_that_is_written_is_read_again() -> None:
    job = job_of(SPARSE, dp_shard=16, ep=4, zero_stage=3, micro_batch=2, recompute="full")
    reading = read(as_shell(maxtext_writer.write(job)))
    assert layout_read(reading, SPARSE) == job.layout
    assert reading.reservations == ()
    assert len(reading.ignored) == 6


def test_the_axis_of_experts_is_one_more_of_fsdp_in_a_dense_model() -> None:
    text = "model_name=llama3.1-8b ici_fsdp_parallelism=4 ici_expert_parallelism=2"
    reading = read(f"{text} dcn_data_parallelism=1")
    assert (reading.layout["dp_shard"], reading.layout["ep"]) == (8, 1)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("model_name=llama3.1-8b shard_optimizer_over_data=true", "shard_optimizer_over_data"),
        (
            "model_name=llama3.1-8b quantization=fp8 gradient_accumulation_steps=2",
            "gradient_accumulation_steps",
        ),
        ("model_name=mixtral-8x7b opt_type=muon", "opt_type"),
    ],
)
def test_a_setting_at_which_maxtext_stops_is_a_stop(text: str, setting: str) -> None:
    assert [stop.setting for stop in read(text).stops] == [setting]


def test_muon_is_not_made_for_every_model() -> None:
    asked = replace(SPARSE, workload=replace(SPARSE.workload, optimizer="muon"))
    with pytest.raises(Inexpressible, match="no Muon"):
        maxtext_writer.write(job_of(asked, dp_shard=16, zero_stage=3))


@pytest.mark.parametrize(
    ("text", "setting", "rule", "cure"),
    [
        (
            "ici_tensor_parallelism=0",
            "ici_tensor_parallelism",
            "at least 1, or -1",
            "ici_tensor_parallelism=1",
        ),
        ("ici_tensor_parallelism=-1", "ici_tensor_parallelism", "one axis may be -1", ""),
        (
            "num_layers_per_pipeline_stage=5 ici_pipeline_parallelism=2",
            "num_layers_per_pipeline_stage",
            "must divide the 32",
            "=1, 2, 4, 8 or 16",
        ),
        (
            "num_pipeline_microbatches=3 ici_pipeline_parallelism=2 per_device_batch_size=2"
            " num_layers_per_pipeline_stage=16",
            "per_device_batch_size",
            "in each of 3 micro-batches",
            "per_device_batch_size=1.5",
        ),
        (
            "dcn_fsdp_parallelism=3 num_slices=4",
            "dcn_data_parallelism",
            "multiply to 3, of which 4 slices",
            "",
        ),
    ],
)
def test_what_parses_and_stops_hides_the_layout(
    text: str, setting: str, rule: str, cure: str
) -> None:
    reading = read(f"{COMMAND} model_name=llama3.1-8b {text}")
    (stop,) = (each for each in reading.stops if each.hides_layout)
    assert stop.setting == setting
    assert rule in stop.rule
    assert cure in stop.cure


@pytest.mark.parametrize(
    ("variables", "words", "fraction", "reserved"),
    [
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.50", "hardware=gpu", 0.5, []),
        ("XLA_CLIENT_MEM_FRACTION=0.92", "hardware=gpu", 0.92, []),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.50", "", None, []),  # of TPUs JAX takes all
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=$PART",
            "hardware=gpu",
            None,
            ["XLA_PYTHON_CLIENT_MEM_FRACTION"],
        ),
        (
            "XLA_PYTHON_CLIENT_MEM_FRACTION=4",
            "hardware=gpu",
            None,
            ["XLA_PYTHON_CLIENT_MEM_FRACTION"],
        ),
    ],
)
def test_the_memory_that_jax_may_allocate_is_read(
    variables: str, words: str, fraction: float | None, reserved: list[str]
) -> None:
    reading = read(f"{variables} {COMMAND} model_name=llama2-7b {words}")
    assert reading.memory_fraction == fraction
    assert [each.setting.partition(" = ")[0] for each in reading.reservations] == reserved


RING = "context_parallel_strategy=ring ici_context_parallelism=4"
ULYSSES = "context_parallel_strategy=ulysses ici_context_parallelism=4"
FLASH = "attention=flash use_tokamax_splash=true"
TE = "hardware=gpu attention=cudnn_flash_te"


@pytest.mark.parametrize(
    ("text", "stopped"),
    [
        (TE, ["max_segments_per_seq"]),
        (f"{TE} packing=false", []),
        (f"{TE} max_segments_per_seq=32", []),
        (f"{TE} max_segments_per_seq=$SEGMENTS", []),
        (RING, ["attention", "use_tokamax_splash"]),
        (f"{RING} {FLASH}", []),
        (f"{RING} hardware=gpu", []),
        (f"{RING} {FLASH} use_jax_splash=true", ["use_jax_splash"]),
        (f"context_parallel_strategy=ring {FLASH}", ["context_parallel_strategy"]),
        (f"{ULYSSES} {FLASH}", ["context_parallel_load_balance"]),
        (f"{ULYSSES} {FLASH} context_parallel_load_balance=false", []),
        (f"{ULYSSES} hardware=gpu", ["context_parallel_strategy"]),
        ("dataset_type=hf", ["hf_path"]),
        ("dataset_type=hf hf_path=allenai/c4", []),
        ("dataset_type=hf hf_path=$DATA", []),
        ("dataset_type=grain", ["grain_train_files"]),
        ("dataset_type=grain grain_file_type=parquet hf_path=parquet", []),
        ("dataset_type=grain grain_file_type=tfrecord dataset_path=/data", []),
        ("dataset_type=tfds", []),
    ],
)
def test_kernels_and_data_that_maxtext_refuses_are_stops(text: str, stopped: list[str]) -> None:
    reading = read(f"{COMMAND} model_name=llama3.1-8b {text}")
    assert [stop.setting for stop in reading.stops] == stopped


@pytest.mark.parametrize("program", ["-m MaxText.train", "src/MaxText/train.py"])
def test_a_program_of_an_earlier_release_may_have_settings_of_its_own(program: str) -> None:
    text = f"python3 {program} model_name=llama3.1-8b hardware=gpu attention=cudnn_flash_te"
    reading = read(
        f"{text} collect_stack_trace=false enable_nnx=False"
        " ici_tensor_transpose_parallelism=2 wholly_new=1"
    )
    assert reading.stops == ()
    assert "of a release before MaxText 0.2.5" in reading.assumed[0]
    assert {"collect_stack_trace = false", "enable_nnx = False"} <= {*reading.ignored}
    names = [each.setting.partition(" = ")[0] for each in reading.reservations]
    assert names == ["ici_tensor_transpose_parallelism", "wholly_new"]
    (stop,) = read(f"{text} per_device_batch_sise=2").stops
    assert stop.cure == "per_device_batch_size"
    (stop,) = read(f"{COMMAND} model_name=llama3.1-8b collect_stack_trace=false").stops
    assert stop.setting == "collect_stack_trace"


_FIELDS = field_table(maxtext_writer.TABLE).fields
_PAIRS = st.tuples(
    st.sampled_from([name for name, field in _FIELDS.items() if field.use == "read"]),
    st.sampled_from(["0", "1", "-1", "4", "nan", "1e400", "true", "", "custom", "device", "[]"]),
)


@given(st.lists(_PAIRS, max_size=6))
def test_whatever_is_written_is_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    with suppress(Invalid):
        reading = read(" ".join(f"{name}={value}" for name, value in [("steps", "1"), *pairs]))
        LayoutFields.model_validate(reading.layout)
        WorkloadFields.model_validate({"global_batch": 1, **reading.workload})


def test_experts_of_a_capacity_are_dense_products() -> None:
    dense = "model_name=mixtral-8x7b sparse_matmul=false capacity_factor=1.5"
    assert read(dense).workload["capacity_factor"] == 1.5
    assert read(dense).reservations == ()
    sparse = read("model_name=mixtral-8x7b capacity_factor=1.5")
    assert "capacity_factor" not in sparse.workload
    whole = read("model_name=mixtral-8x7b sparse_matmul=false")
    assert "every expert" in whole.reservations[0].text
    with pytest.raises(Invalid, match="capacity_factor = 1000"):
        read("model_name=mixtral-8x7b sparse_matmul=false capacity_factor=1000")
    (stop,) = read("model_name=gpt-oss-20b sparse_matmul=false capacity_factor=1").stops
    assert stop.setting == "capacity_factor"


def test_a_model_that_nobody_names_is_left_open() -> None:
    assert read("per_device_batch_size=2 ici_fsdp_parallelism=8").model is None

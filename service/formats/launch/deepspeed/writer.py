"""Writes a layout as a DeepSpeed document, for deepspeed 0.19.8.

The document says how a step is divided; the model, the sequence length and a pipeline are code of
the training script, and the notes say what that code must do. The text of an Inexpressible says why
no setting does what was asked for, and what to ask for instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.layout import Layout
from models.spec.switches import launch_arguments, launch_code
from service.formats.launch.documents import nested
from service.formats.launch.facts import placeholders
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.launch.knobs import require_default_order, require_values
from service.formats.launch.machines import slurm_options

NAME = "deepspeed"
FRAMEWORK = "DeepSpeed"
RELEASE = "0.19.8"

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "adamw": {"optimizer.type": "AdamW"},
    "muon": {"optimizer.type": "Muon"},
    "sgd_momentum": {"optimizer.type": "SGD", "optimizer.params.momentum": 0.9},
}
"""The optimizers that the document names; others are built in code (runtime/engine.py,
_configure_basic_optimizer)."""


def write(job: Job) -> LaunchConfiguration:
    """Returns the DeepSpeed document that runs a job. Raises Inexpressible where none does."""
    layout = job.layout
    _require_expressible(job)
    settings = {
        # Every rank of tensor parallelism counts as one that has data of its own
        # (runtime/config.py, world_size).
        "train_batch_size": job.problem.workload.global_batch * layout.tp,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": job.num_micro_batches,
        **_precision(job),
        **_sharding(layout),
        **_degrees(layout),
        **_recompute(layout),
        **launch_arguments(job.problem, layout),
        # ZeRO refuses an optimizer of the script's own unless it is told so.
        **OPTIMIZERS.get(job.problem.workload.optimizer, {"zero_allow_untested_optimizer": True}),
    }
    return LaunchConfiguration(
        format=NAME,
        framework=FRAMEWORK,
        version=RELEASE,
        settings=nested(settings),
        script_arguments=launch_arguments(job.problem, layout, of_script=True),
        placeholders=placeholders(NAME, optimizer=job.problem.workload.optimizer in OPTIMIZERS),
        slurm=slurm_options(job.machines),
        notes=tuple(_notes(job)),
    )


def _require_expressible(job: Job) -> None:
    """Raises Inexpressible for a layout or a number format that a DeepSpeed document cannot set."""
    layout = job.layout
    require_values(layout, NAME)
    require_default_order(layout)
    precision = job.problem.workload.precision
    if precision not in ("bf16", "fp16", "fp32"):
        cure = "other formats are layers of the model's own code; ask with bf16, fp16 or fp32"
        raise Inexpressible("workload.precision", precision, cure)
    if not job.problem.workload.master_weights:
        _require_expressible_narrow_states(job)
    if layout.zero_stage and layout.dp_replicate > 1:
        cure = f"ZeRO shards over all data-parallel ranks; ask with dp_shard {layout.dp}"
        raise Inexpressible("layout.dp_replicate", layout.dp_replicate, cure)
    if layout.offload_optimizer and not layout.zero_stage:
        cure = "offload_optimizer is part of ZeRO; ask with zero_stage 1 or more"
        raise Inexpressible("layout.offload_optimizer", True, cure)
    if layout.offload_activations and layout.recompute != "full":
        cure = "it offloads what checkpointing keeps; ask with recompute full"
        raise Inexpressible("layout.offload_activations", True, cure)
    if layout.tp > 1 and layout.cp > 1:
        cure = "AutoTP and Ulysses both take neighbouring ranks; ask with tp 1 or cp 1"
        raise Inexpressible("layout.cp", layout.cp, cure)
    if layout.pp > 1:
        _require_expressible_pipeline(job)


def _require_expressible_narrow_states(job: Job) -> None:
    """Raises Inexpressible where DeepSpeed cannot keep optimizer states in 16 bits
    (runtime/config.py, and runtime/base_optimizer.py, _configure_master_weights)."""
    layout = job.layout
    precision = job.problem.workload.precision
    if precision != "bf16":
        cure = "parameters go without an fp32 copy in bf16 only; ask with bf16, or master_weights"
        raise Inexpressible("workload.precision", precision, cure)
    if not layout.zero_stage:
        cure = "ZeRO keeps states in 16 bits; ask with zero_stage 1, or with master_weights true"
        raise Inexpressible("layout.zero_stage", 0, cure)
    if layout.offload_optimizer:
        cure = "states of 16 bits stay on the device; ask with false, or with master_weights true"
        raise Inexpressible("layout.offload_optimizer", True, cure)


def _require_expressible_pipeline(job: Job) -> None:
    """Raises Inexpressible for a pipeline that a PipelineModule cannot run."""
    layout = job.layout
    if layout.tp > 1:
        cure = "it shards no layers of a PipelineModule by itself; ask with tp 1 or pp 1"
        raise Inexpressible("layout.tp", layout.tp, cure)
    if len(set(job.layers_per_chunk)) > 1:
        cure = "a PipelineModule takes no numbers of layers; ask with balanced false"
        raise Inexpressible("layout.layers_per_chunk", list(job.layers_per_chunk), cure)


def _precision(job: Job) -> dict[str, Any]:
    """Returns the settings of the number formats: {"bf16.enabled": True}; none for fp32."""
    workload = job.problem.workload
    if workload.precision == "fp32":
        return {}
    settings: dict[str, Any] = {f"{workload.precision}.enabled": True}
    # Without fp32 copies parameters, gradients and states all have 16 bits.
    if not workload.master_weights:
        settings["bf16.bf16_master_weights_and_grads"] = True
        settings["bf16.bf16_optimizer_states"] = True
    # By default gradients are sent in the format of the parameters.
    if job.problem.gradient_bytes == 4:
        settings["communication_data_type"] = "fp32"
    return settings


def _sharding(layout: Layout) -> dict[str, Any]:
    """Returns the settings of the ZeRO stage and of the offloaded optimizer, by dotted name."""
    settings: dict[str, Any] = {"zero_optimization.stage": layout.zero_stage}
    if layout.offload_optimizer:
        settings["zero_optimization.offload_optimizer.device"] = "cpu"
        settings["zero_optimization.offload_optimizer.pin_memory"] = True
    return settings


def _degrees(layout: Layout) -> dict[str, Any]:
    """Returns the settings of the degrees above 1, by dotted name:
    {"tensor_parallel.autotp_size": 2}."""
    settings: dict[str, Any] = {}
    if layout.tp > 1:
        settings["tensor_parallel.autotp_size"] = layout.tp
    if layout.cp > 1:
        # Together these make the mesh of Ulysses (deepspeed/__init__.py, initialize).
        settings["sequence_parallel_size"] = layout.cp
        settings["data_parallel_size"] = layout.dp
    if layout.ep > 1:
        settings["expert_parallel.enabled"] = True
        settings["expert_parallel.autoep_size"] = layout.ep
    if layout.pp > 1:
        settings["pipeline.stages"] = layout.pp
        settings["pipeline.partition"] = "uniform"  # as many layers in each stage
    return settings


def _recompute(layout: Layout) -> dict[str, Any]:
    """Returns the settings of activation checkpointing, by dotted name; none without recompute."""
    if layout.recompute == "none":
        return {}
    # The block says that the script checkpoints activations. It needs a member, and this one has
    # its default value.
    settings: dict[str, Any] = {"activation_checkpointing.partition_activations": False}
    if layout.offload_activations:
        settings["activation_checkpointing.cpu_checkpointing"] = True
    if layout.pp > 1:
        settings["pipeline.activation_checkpoint_interval"] = 1
    return settings


def _notes(job: Job) -> Iterator[str]:
    """Yields what the training script must do, because no setting does it."""
    layout = job.layout
    workload = job.problem.workload
    yield f"Sequences of {workload.seq_len} tokens are cut by the training script."
    yield (
        "A script with the Trainer of transformers takes the document as --deepspeed,"
        " in place of --deepspeed_config, and wants the same numbers in its own arguments:"
        f" --per_device_train_batch_size {layout.micro_batch}"
        f" --gradient_accumulation_steps {job.num_micro_batches}, the learning rate and, as"
        " --max_grad_norm, gradient_clipping."
    )
    if layout.recompute == "full" and layout.pp == 1:
        yield (
            "Switch checkpointing of every layer on in the model, as gradient_checkpointing_enable"
            " of transformers does: activation_checkpointing says how, not whether."
        )
    if layout.pp > 1:
        yield (
            f"The model is a PipelineModule(layers, num_stages={layout.pp},"
            " partition_method='type:REGEX'), with a REGEX for the class of its layers, so that"
            " every stage has as many; pipeline.stages alone makes none."
        )
    if layout.tp > 1:
        yield (
            f"train_batch_size is {layout.tp} times the {workload.global_batch} sequences of a"
            " step, because DeepSpeed counts ranks of AutoTP as data-parallel ones."
        )
    if layout.cp > 1:
        yield "Attention runs under Ulysses: deepspeed.sequence.layer.DistributedAttention."
    if workload.optimizer not in OPTIMIZERS:
        yield f"Pass the optimizer ({workload.optimizer}) to deepspeed.initialize."
    yield from launch_code(job.problem, layout)

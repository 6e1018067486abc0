"""Writes a layout as flags of torchtitan 0.3.0.

A *recipe* is here the pair of --module and --config, which name the function in torchtitan's code
that makes the model and sets defaults. The text of an Inexpressible says why no flag does it, and
what to ask for instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from models.spec import catalogue
from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.switches import as_launched, launch_arguments
from service.formats.launch.facts import placeholders
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.launch.knobs import require_default_order, require_values
from service.formats.launch.machines import slurm_options
from service.formats.launch.torchtitan.pipeline import SCHEDULES, named_split, split_settings
from service.formats.settings.field_table import field_table

NAME = "torchtitan"
FRAMEWORK = "torchtitan"
RELEASE = "0.3.0"
TABLE = "torchtitan_0.3.0"
RECOMPUTE = "activation_checkpoint"
"""The setting of recompute. It is written as a subcommand, `activation-checkpoint:full`, behind all
flags."""
_KEPT_MODELS = 1024  # models, each with a config function

_MATRICES_OF_TARGET = {"attention": ("wq", "wkv", "wo"), "mlp": ("w1", "w2", "w3")}
"""The names of the matrices of Llama that have adapters, by the word of requests."""
_PRECISIONS = ("bf16", "fp32", "fp8", "mxfp8", "nvfp4")
_CONVERTERS = {
    "fp8": "Float8LinearConverter",
    "mxfp8": "MXFP8LinearConverter",
    "nvfp4": "NVFP4LinearConverter",
}
IMPLEMENTATIONS: Mapping[str, str] = {
    "adamw": "fused",
    "adamw_bf16_moments": "fused_opt_states_bf16",
}
"""By optimizer, `optimizer.implementation` (components/optimizer/optimizer.py)."""


def write(job: Job) -> LaunchConfiguration:
    """Returns the flags that run a job. Raises Inexpressible where none do."""
    _require_expressible(job)
    recipe = _config_function(job)
    settings = {
        **({"module": recipe[0], "config": recipe[1]} if recipe else {}),
        **_training(job),
        **_degrees(job.layout),
        **_pipeline(job, has_function=recipe is not None),
        **_switch_settings(job),
        "checkpoint.enable": True,  # off by default; checkpoint.folder is a placeholder
        RECOMPUTE: job.layout.recompute,
    }
    return LaunchConfiguration(
        format=NAME,
        framework=FRAMEWORK,
        version=RELEASE,
        settings=settings,
        placeholders=_placeholders(job, has_function=recipe is not None),
        slurm=slurm_options(job.machines),
        notes=tuple(_notes(job, has_function=recipe is not None)),
    )


def words(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as an argument list. The subcommand of activation checkpointing comes
    last, because behind it torchtitan reads only its options."""
    arguments: list[str] = []
    for name, value in settings.items():
        if name != RECOMPUTE:
            arguments += _setting_words(name, value)
    if RECOMPUTE in settings:
        arguments.append(f"{RECOMPUTE.replace('_', '-')}:{settings[RECOMPUTE]}")
    return arguments


def _setting_words(name: str, value: Any) -> list[str]:
    """Returns a setting as words: "--name" for True, "--section.no_name" for False, else the
    flag and its value; lists are joined by commas."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        section, _, last = name.rpartition(".")
        return [f"--{section}.no_{last}"]
    # A list of lists, as of the modules of each chunk, has a word for each inner list.
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [f"--{name}", *(",".join(part) for part in value)]
    if isinstance(value, list):
        return [f"--{name}", ",".join(map(str, value))]
    return [f"--{name}", str(value)]


# -- what no flag says


def _require_expressible(job: Job) -> None:
    """Raises Inexpressible for a layout or a workload that torchtitan has no flags for."""
    layout = job.layout
    workload = job.problem.workload
    require_values(layout, NAME)
    require_default_order(layout)
    if layout.zero_stage == 0 and layout.cp > 1:
        cure = "parameters are sharded over context parallelism too; ask with zero_stage 3"
        raise Inexpressible("layout.zero_stage", 0, cure)
    if layout.schedule == "afab" and layout.pp == 1 and job.num_micro_batches > 1:
        cure = "without a pipeline each micro-batch runs forward and backward; ask with 1f1b"
        raise Inexpressible("layout.schedule", "afab", cure)
    if layout.recompute == "selective" and not _is_own_selective(job):
        cure = "its selective policy is one set of operations; leave recompute_modules out"
        raise Inexpressible("layout.recompute_modules", list(layout.recompute_modules), cure)
    if workload.precision not in _PRECISIONS:
        cure = f"ask with one of {', '.join(_PRECISIONS)}"
        raise Inexpressible("workload.precision", workload.precision, cure, is_refused=True)
    if workload.optimizer not in (*IMPLEMENTATIONS, "muon"):
        cure = "its optimizers are Adam, AdamW and DistMuon; ask with adamw, or muon"
        raise Inexpressible("workload.optimizer", workload.optimizer, cure, is_refused=True)


def _is_own_selective(job: Job) -> bool:
    """Returns True where the layout recomputes the modules that torchtitan's selective policy
    does, as far as the model has them. No flag lists other modules."""
    # The policy is torchtitan's own, and not one that the request gives its stack. The year counts
    # for requests about an older stack alone.
    launched = as_launched(job.problem, job.layout, shipped_profile().software_year)
    of_policy = launched.selective[0]
    given = job.layout.recompute_modules or of_policy
    has_module = job.problem.has_module
    return set(filter(has_module, given)) == set(filter(has_module, of_policy))


# -- the settings


def _config_function(job: Job) -> tuple[str, str] | None:
    """Returns the module and the config function that train the model of a job, ("llama3",
    "llama3_8b"). None where no function has its precision and optimizer, and for adapters, which
    a converter makes."""
    workload = job.problem.workload
    if workload.lora:
        return None
    # Flags choose fp32 and the variants of AdamW, and only functions fp8 and Muon.
    precision = "bf16" if workload.precision == "fp32" else workload.precision
    optimizer = "muon" if workload.optimizer == "muon" else "adamw"
    for module, configs in field_table(TABLE).facts["configs"].items():
        for name, config in configs.items():
            if (
                config["model"] is not None
                and not config.get("is_variant")  # as for fine-tuning, beside a plain function
                and config.get("precision", "bf16") == precision
                and config.get("optimizer", "adamw") == optimizer
                and _is_trained_by(job.problem.architecture, config["model"])
            ):
                return module, name
    return None


@cached_by_identity(_KEPT_MODELS)
def _is_trained_by(architecture: Architecture, name: str) -> bool:
    """Returns True where a config function for the catalogue's model `name` trains this
    architecture. No function trains multi-token prediction."""
    known = replace(catalogue.architecture(name), mtp_layers=0)
    return catalogue.matching_name(architecture, [known]) is not None


def _training(job: Job) -> dict[str, Any]:
    """Returns the settings of batch sizes, number formats, offload and optimizer. With a
    pipeline the local batch is all that a rank computes in a step, otherwise one micro-batch."""
    layout = job.layout
    workload = job.problem.workload
    rank_batch = workload.global_batch // layout.dp
    # With adapters most parameters are frozen, and have 16 bits.
    keeps_masters = workload.master_weights and workload.lora is None
    settings: dict[str, Any] = {
        "training.seq_len": workload.seq_len,
        "training.global_batch_size": workload.global_batch,
        "training.local_batch_size": rank_batch if layout.pp > 1 else layout.micro_batch,
        "training.dtype": "float32" if keeps_masters else "bfloat16",
        "training.mixed_precision_param": (
            "float32" if workload.precision == "fp32" else "bfloat16"
        ),
        "training.enable_cpu_offload": layout.offload_optimizer,
    }
    if workload.optimizer in IMPLEMENTATIONS:
        settings["optimizer.implementation"] = IMPLEMENTATIONS[workload.optimizer]
    if job.problem.architecture.is_moe:
        settings["debug.moe_force_load_balance"] = workload.routing == "balanced"
    return settings


def _degrees(layout: Layout) -> dict[str, Any]:
    """Returns the settings of all degrees and of resharding. Degrees of 1 are written too, since
    config functions set some otherwise."""
    settings: dict[str, Any] = {
        "parallelism.data_parallel_replicate_degree": layout.dp_replicate,
        "parallelism.data_parallel_shard_degree": layout.dp_shard,
        "parallelism.context_parallel_degree": layout.cp,
        "parallelism.tensor_parallel_degree": layout.tp,
        "parallelism.pipeline_parallel_degree": layout.pp,
        "parallelism.expert_parallel_degree": layout.ep,
    }
    if layout.tp > 1:
        settings["parallelism.enable_sequence_parallel"] = layout.sequence_parallel
    if layout.zero_stage:
        reshards = layout.zero_stage == 3 and layout.reshard
        settings["parallelism.fsdp_reshard_after_forward"] = "always" if reshards else "never"
    return settings


def _pipeline(job: Job, *, has_function: bool) -> dict[str, Any]:
    """Returns the settings of the pipeline; none without one. Without a known config function
    the split lists every module by name, and then depends on nothing that the caller's own
    function sets."""
    layout = job.layout
    if layout.pp == 1:
        return {}
    has_chunks = layout.schedule == "interleaved"
    chunks = job.layers_per_chunk
    split = split_settings(chunks, has_chunks=has_chunks) if has_function else named_split(chunks)
    return {
        "parallelism.pipeline_parallel_schedule": SCHEDULES[layout.schedule],
        "parallelism.pipeline_parallel_microbatch_size": layout.micro_batch,
        **split,
    }


def _switch_settings(job: Job) -> dict[str, Any]:
    """Returns the settings of the stack's switches, such as compilation. torchtitan captures a
    step as a CUDA graph unless told not to, and that fails in a pipeline and with all-to-alls of
    the standard dispatcher (trainer.py, _validate_cuda_graphs)."""
    layout = job.layout
    stack = job.problem.stack
    settings = launch_arguments(job.problem, layout)
    settings.setdefault("training.disable_cuda_graphs", True)
    captures = not settings["training.disable_cuda_graphs"]
    if captures and (layout.pp > 1 or layout.ep > 1):
        cure = "CUDA graphs go with neither pp nor ep; ask with launch compiled"
        raise Inexpressible("stack.launch", stack.launch, cure)
    # torchtitan fuses kernels only by compiling them, so it captures unfused ones uncompiled.
    is_uncompiled = stack.launch == "eager" or (captures and not stack.fused)
    if is_uncompiled:  # the loss may be compiled by itself
        compiles_loss = stack.loss == "compiled"
        settings["compile.enable"] = compiles_loss
        # Without compilation the components count for nothing, and are the default.
        settings["compile.components"] = ["loss"] if compiles_loss else ["model", "loss"]
        settings.pop("compile.enable_async_tensor_parallel", None)  # refused uncompiled
    return settings


def other_stack_fields(problem: Problem) -> Collection[str]:
    """Returns the fields of the stack that the settings express although no switch does: "loss"
    for one that is compiled by itself, and "fused" for kernels that are captured uncompiled. A
    request for any other field is refused."""
    stack = problem.stack
    if stack.launch == "eager" and stack.loss in ("compiled", "pytorch"):
        return ("loss",)
    return ("fused",) if stack.launch == "graph" else ()


def _placeholders(job: Job, *, has_function: bool) -> dict[str, str]:
    """Returns the settings that the caller must fill in, each with a sentence on what to put
    there. `has_function` says that a config function of torchtitan trains the model."""
    named = placeholders(NAME)
    if has_function:
        return named
    name = job.problem.architecture.name
    return {
        "module": f"the module with a config function for {name}, such as llama3",
        "config": f"a config function for {name}{_config_function_needs(job)}",
        **named,
    }


def _config_function_needs(job: Job) -> str:
    """Returns what a config function written for the job must have, as words to append to a
    sentence: " with DistMuon"."""
    workload = job.problem.workload
    needs = []
    if workload.precision in _CONVERTERS:
        needs.append(f"with {_CONVERTERS[workload.precision]}")
    if workload.optimizer == "muon":
        needs.append("with DistMuon")
    if workload.lora:
        needs.append(f"with {_lora_converter(workload.lora)}")
    if job.problem.architecture.mtp_layers:
        needs.append(f"with num_mtp_layers={job.problem.architecture.mtp_layers}")
    return "".join(f" {need}" for need in needs)


def _lora_converter(lora: Lora) -> str:
    """Returns the Python expression of the converter that adds LoRA adapters
    (components/lora.py)."""
    names = [name for target in lora.targets for name in _MATRICES_OF_TARGET.get(target, ())]
    # An alpha of twice the rank is a usual scale; it changes neither time nor memory.
    return f"LoRAConverter.Config(rank={lora.rank}, alpha={2 * lora.rank}, target_modules={names})"


def _notes(job: Job, *, has_function: bool) -> Iterator[str]:
    """Yields what the caller must know beyond the flags."""
    layout = job.layout
    workload = job.problem.workload
    yield (
        f"These are flags of torchtitan {RELEASE}. Its main branch has since moved to tokens per"
        " micro-batch (num_tokens_per_microbatch_per_dp_rank) and refuses the batch sizes here."
    )
    if not has_function:
        yield (
            f"No config function of {RELEASE} trains {job.problem.architecture.name} in"
            f" {workload.precision} with {workload.optimizer}: write one and name it."
        )
    if workload.lora:
        yield (
            f"Adapters are made by a converter of model_registry: {_lora_converter(workload.lora)};"
            " names of matrices are those of Llama, and differ from model to model. With"
            " training.dtype=bfloat16, which keeps frozen weights in 16 bits, adapters and their"
            " moments have 16 bits too."
        )
    if layout.zero_stage == 2 and layout.pp == 1 and job.num_micro_batches > 1:
        yield (
            "FSDP drops parameters behind every backward pass: they are gathered once for each of"
            f" the {job.num_micro_batches} micro-batches, and not once a step as ZeRO 2 would."
        )
    if layout.offload_optimizer:
        yield "enable_cpu_offload takes sharded parameters and gradients to the host too."
    if job.problem.architecture.is_moe and workload.load_balancing != "bias":
        yield (
            "Experts are balanced by a bias (load_balance_coeff of the config function), whatever"
            f" load_balancing({workload.load_balancing}) asks for."
        )

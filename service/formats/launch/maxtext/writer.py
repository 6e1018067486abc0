"""Writes a layout as key=value settings of MaxText 0.2.5.

The text of an Inexpressible says why no setting does what was asked for, and what to ask for
instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any

from models.layouts.defaults import torus_axes_covering_dims
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.switches import launch_arguments
from service.formats.launch.facts import placeholders
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.launch.knobs import require_values
from service.formats.launch.machines import slurm_options
from service.formats.launch.maxtext.details import detail_notes, detail_settings
from service.formats.launch.maxtext.mesh import Mesh, mesh_of, splits_physical_axes
from service.formats.launch.maxtext.model import model_settings, takes_muon
from service.formats.launch.maxtext.remat import remat_settings
from service.formats.settings.field_table import field_table

NAME = "maxtext"
FRAMEWORK = "MaxText"
RELEASE = "0.2.5"
TABLE = "maxtext_0.2.5"

QUANTIZATIONS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("fp8", "google"): {"quantization": "fp8_full", "use_qwix_quantization": True},
    ("fp8", "nvidia"): {"quantization": "fp8"},
    ("fp8", "amd"): {"quantization": "nanoo_fp8"},
    ("mxfp8", "nvidia"): {"quantization": "te_mxfp8"},
    ("nvfp4", "nvidia"): {"quantization": "te_nvfp4"},
    **{("int8", vendor): {"quantization": "int8"} for vendor in ("google", "nvidia", "amd")},
}
"""By precision and vendor (configs/base.yml, quantization)."""
_DTYPES = {"fp32": "float32", "fp16": "float16"}
OPTIMIZERS = {"adamw": "adamw", "muon": "muon"}
_NO_COMPILER_FLAGS = {
    True: "LIBTPU_INIT_ARGS is not set. The runs behind the predictions set it so that collectives"
    " hide behind computing, as benchmarks/xla_flags_library.py of MaxText has it for each TPU.",
    False: "XLA_FLAGS is not set. The runs behind the predictions set"
    " --xla_gpu_enable_latency_hiding_scheduler=true, so that collectives hide behind computing.",
}
"""By whether the job runs on TPUs."""
DROPLESS = ("llama4", "gpt-oss")
"""Beginnings of the names of models whose experts must not drop tokens (configs/types.py)."""


def write(job: Job) -> LaunchConfiguration:
    """Returns the settings that run a job. Raises Inexpressible where none do."""
    _require_expressible(job)
    problem = job.problem
    mesh = mesh_of(job.layout, problem.cluster)
    model = model_settings(problem.architecture, field_table(TABLE))
    if model.get("model_name") == "default":  # made by sizes; a file would have the details
        model |= detail_settings(job.details)
    if problem.workload.optimizer == "muon" and not takes_muon(model):
        cure = f"MaxText has no Muon for layers of {problem.architecture.name}; ask with adamw"
        raise Inexpressible("workload.optimizer", "muon", cure)
    if (
        problem.workload.routing == "balanced"
        and problem.architecture.is_moe
        and not mesh.has_experts
    ):
        cure = "it routes at random only over an expert axis (use_random_routing); ask with ep 2"
        raise Inexpressible("workload.routing", "balanced", cure)
    settings = {
        **model,
        "hardware": "tpu" if problem.cluster.chip.vendor == "google" else "gpu",
        "max_target_length": problem.workload.seq_len,
        **_batch(job),
        **mesh.settings(),
        **_context(job),
        **_sharding(job, mesh),
        **_pipeline(job),
        **remat_settings(job.layout, problem.architecture, _recomputed_modules(job)),
        "optimizer_memory_host_offload": job.layout.offload_optimizer,
        **_training(job),
        **_switches(job),
    }
    is_tpu = problem.cluster.is_torus  # no other chips are joined as a torus
    return LaunchConfiguration(
        format=NAME,
        framework=FRAMEWORK,
        version=RELEASE,
        settings=settings,
        placeholders=_placeholders(job, has_model=bool(model)),
        slurm={} if is_tpu else slurm_options(job.machines),
        notes=tuple(_notes(job, model)),
    )


def words(settings: Mapping[str, Any]) -> list[str]:
    """Returns the settings as the words of a command line, ["ici_tensor_parallelism=8"], which
    follow base.yml."""
    return [f"{name}={_text_of(value)}" for name, value in settings.items()]


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# -- what no setting says


def _require_expressible(job: Job) -> None:
    """Raises Inexpressible for a layout or a workload that MaxText has no settings for."""
    layout = job.layout
    workload = job.problem.workload
    require_values(layout, NAME)
    if layout.zero_stage < 3 and (layout.cp > 1 or layout.ep > 1):
        cure = "weights are sharded over context and expert parallelism too; ask with zero_stage 3"
        raise Inexpressible("layout.zero_stage", layout.zero_stage, cure)
    if job.problem.experts_keep_tensor and layout.etp != layout.tp:
        cure = f"experts are sharded over tensor like the rest; ask with etp {layout.tp}"
        raise Inexpressible("layout.etp", layout.etp, cure)
    if layout.zero_stage == 3 and not layout.reshard and layout.pp == 1:
        cure = "only a pipeline gathers once (pipeline_fsdp_ag_once); ask with true"
        raise Inexpressible("layout.reshard", False, cure)
    if layout.tp > 1 and not layout.sequence_parallel:
        cure = "its tensor axis shards norms and residuals too; ask with true"
        raise Inexpressible("layout.sequence_parallel", False, cure)
    if workload.optimizer not in OPTIMIZERS:
        cure = (
            "mu_dtype narrows the first moment only, and weight_dtype the parameters too; ask with"
            f" {' or '.join(OPTIMIZERS)}"
        )
        raise Inexpressible("workload.optimizer", workload.optimizer, cure)
    _require_expressible_capacity(job)
    if layout.pp > 1:
        _require_expressible_pipeline(job)
    elif layout.schedule == "afab" and job.num_micro_batches > 1:
        cure = "accumulated micro-batches each run forward and backward; ask with 1f1b"
        raise Inexpressible("layout.schedule", "afab", cure)


def _require_expressible_capacity(job: Job) -> None:
    """Raises Inexpressible for a capacity factor where MaxText refuses or ignores it
    (configs/types.py; layers/moe.py, dense_matmul)."""
    factor = job.problem.workload.capacity_factor
    if not job.has_capacity:
        return
    if job.layout.ep > 1 and job.problem.stack.dispatcher == "allgather":
        cure = "a ring of experts drops no tokens; ask with dispatcher alltoall"
        raise Inexpressible("stack.dispatcher", "allgather", cure)
    model = model_settings(job.problem.architecture, field_table(TABLE)).get("model_name", "")
    if model.startswith(DROPLESS):
        cure = f"MaxText refuses it for {model}; ask without capacity_factor"
        raise Inexpressible("workload.capacity_factor", factor, cure)


def _require_expressible_pipeline(job: Job) -> None:
    """Raises Inexpressible for a pipeline whose schedule or split MaxText does not have."""
    if job.layout.schedule != "afab":
        cure = "its pipeline runs all forward passes first; ask with afab"
        raise Inexpressible("layout.schedule", job.layout.schedule, cure)
    if len(set(job.layers_per_chunk)) > 1:
        cure = "stages have equally many layers; ask with balanced false"
        raise Inexpressible("layout.layers_per_chunk", list(job.layers_per_chunk), cure)
    layers = job.problem.architecture.layers
    if layers[0].moe is None and layers[-1].moe:
        cure = "dense layers in front of sparse ones stay outside its pipeline; ask with 1"
        raise Inexpressible("layout.pp", job.layout.pp, cure)


# -- the settings


def _batch(job: Job) -> dict[str, Any]:
    """Returns the settings of the batch. per_device_batch_size counts the sequences of one
    forward pass per device, and is a fraction where devices share a sequence. A pipeline cuts
    them into micro-batches."""
    layout = job.layout
    is_pipelined = layout.pp > 1
    at_once = job.num_micro_batches if is_pipelined else 1  # micro-batches of a forward pass
    sequences = layout.micro_batch * layout.dp * at_once
    settings: dict[str, Any] = {
        "per_device_batch_size": per_device(sequences, layout.num_devices),
        "gradient_accumulation_steps": 1 if is_pipelined else job.num_micro_batches,
    }
    if is_pipelined:
        settings["num_pipeline_microbatches"] = job.num_micro_batches
    return settings


def per_device(sequences: int, devices: int) -> float | int:
    """Returns sequences divided by devices. The quotient is rounded up where needed, because
    MaxText multiplies it by the devices again and truncates (configs/types.py,
    calculate_global_batch_sizes)."""
    exact = Fraction(sequences, devices)
    if exact.denominator == 1:
        return exact.numerator
    rounded = float(exact)
    is_whole = int(devices * rounded) == sequences
    return rounded if is_whole else math.nextafter(rounded, math.inf)


def _sharding(job: Job, mesh: Mesh) -> dict[str, Any]:
    """Returns the setting that shards the optimizer alone (ZeRO 1), and the one that lets JAX
    split dims of a torus where the mesh needs it."""
    settings: dict[str, Any] = {"shard_optimizer_over_data": job.layout.zero_stage == 1}
    if splits_physical_axes(mesh, job.problem.cluster):
        settings["allow_split_physical_axes"] = True
    return settings


def _pipeline(job: Job) -> dict[str, Any]:
    """Returns the settings of the pipeline; none without one."""
    layout = job.layout
    if layout.pp == 1:
        return {}
    return {
        "num_layers_per_pipeline_stage": job.layers_per_chunk[0],  # all stages have as many
        "num_pipeline_repeats": 1,  # no stage takes turns with several groups of layers
        "pipeline_fsdp_ag_once": layout.zero_stage == 3 and not layout.reshard,
    }


def _recomputed_modules(job: Job) -> tuple[str, ...]:
    """Returns the modules of selective recompute; where the layout names none, the first of the
    stack's sets, which is its own choice."""
    return job.layout.recompute_modules or job.problem.stack.selective[0]


def _training(job: Job) -> dict[str, Any]:
    """Returns the settings of number formats, optimizer and routing. Moments have as many bits
    as weights. Raises Inexpressible where the chip's vendor has no quantization for the
    precision."""
    workload = job.problem.workload
    # Quantized formats are of matrix products alone; all else is then in bf16.
    narrow = _DTYPES.get(workload.precision, "bfloat16")
    settings: dict[str, Any] = {
        "dtype": narrow,
        "weight_dtype": "float32" if workload.master_weights else narrow,
        "opt_type": OPTIMIZERS[workload.optimizer],
    }
    if workload.routing == "balanced" and job.problem.architecture.is_moe:
        settings["use_random_routing"] = True
    if job.has_capacity:
        settings["capacity_factor"] = workload.capacity_factor
    if workload.precision in ("bf16", *_DTYPES):
        return settings
    vendor = job.problem.cluster.chip.vendor
    quantization = QUANTIZATIONS.get((workload.precision, vendor))
    if quantization is None:
        known = [precision for precision, maker in QUANTIZATIONS if maker == vendor]
        cure = f"on chips of {vendor} ask with one of {', '.join(('bf16', *_DTYPES, *known))}"
        raise Inexpressible("workload.precision", workload.precision, cure)
    return {**settings, **quantization}


def other_stack_fields(problem: Problem) -> Collection[str]:
    """Returns the fields of the stack that settings express although no switch does: "context"
    where ring attention runs on GPUs. On TPUs rings need kernels of their own (configs/types.py).
    A request for any other field is refused."""
    goes_round = problem.stack.context == "ring" and problem.cluster.chip.vendor != "google"
    return ("context",) if goes_round else ()


def _context(job: Job) -> dict[str, str]:
    """Returns the setting for ring attention; none for the default exchange of keys and values."""
    runs_ring = "context" in other_stack_fields(job.problem)
    is_ring = job.layout.cp > 1 and runs_ring
    return {"context_parallel_strategy": "ring"} if is_ring else {}


def _switches(job: Job) -> dict[str, Any]:
    """Returns the settings of the stack's switches. Kernels of sparse products have no capacity,
    so experts with one are computed as dense products."""
    switches = dict(launch_arguments(job.problem, job.layout))
    if job.has_capacity:
        switches.pop("megablox", None)
        switches["sparse_matmul"] = False
    return switches


def _placeholders(job: Job, *, has_model: bool) -> dict[str, str]:
    """Returns the settings that the caller must fill in, each with a sentence on what to put
    there. `has_model` says that MaxText makes the model by name or sizes."""
    is_on_gpus = not job.problem.cluster.is_torus
    uses_cudnn = is_on_gpus and job.problem.stack.attention_kernel == "cudnn"
    # cuDNN has to be told how many documents a sequence has at most.
    named = placeholders(NAME, segments=uses_cudnn)
    if has_model:
        return named
    name = job.problem.architecture.name
    return {"model_name": f"the name of a file of MaxText with the sizes of {name}", **named}


def _notes(job: Job, model: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the caller must know beyond the settings. `model` has the settings of the
    model; it is empty where MaxText cannot make it."""
    problem = job.problem
    layout = job.layout
    yield _NO_COMPILER_FLAGS[problem.cluster.is_torus]
    if model.get("model_name") == "default":
        yield from detail_notes(job.details)
    if not model:
        yield (
            f"MaxText {RELEASE} has no file for {problem.architecture.name}, nor sizes that make"
            " its layers: write configs/models/NAME.yml and name it."
        )
    if problem.workload.load_balancing != "none" and problem.architecture.is_moe:
        yield "Balancing of experts is part of the model: load_balance_loss_weight, or routed_bias."
    if job.has_capacity:
        yield (
            "capacity_factor needs sparse_matmul=false, whose products that dispatch and combine"
            " tokens are not predicted."
        )
    if problem.cluster.is_torus:
        yield _hosts_note(job)
    if problem.cluster.is_torus and not _is_placed_by_default(job, layout):
        yield (
            f"JAX lays the mesh over the slice by itself; the layout fills it along"
            f" {', '.join(layout.torus_axes)} in blocks of {layout.torus_block}, which only"
            " device coordinates in the log of MaxText can confirm."
        )


def _hosts_note(job: Job) -> str:
    """Returns the note that says how the hosts of a TPU slice are started together."""
    hosts = job.machines.nodes
    chips = job.problem.cluster.num_chips // hosts
    slices = job.problem.cluster.num_chips // math.prod(job.problem.cluster.slice_shape)
    place = "the slice" if slices == 1 else f"the {slices} slices"
    return (
        f"The command starts one process, and every host of {place} must run it at the same time:"
        f" {hosts} hosts, where a host has {chips} chips. `gcloud compute tpus tpu-vm ssh NAME"
        " --worker=all --command=…` does so, and so does XPK, which starts several slices too."
    )


def _is_placed_by_default(job: Job, layout: Layout) -> bool:
    """Returns True where the layout places its axes on the torus as JAX does without being told."""
    return layout.torus_block == 1 and layout.torus_axes == torus_axes_covering_dims(
        job.problem, layout
    )
